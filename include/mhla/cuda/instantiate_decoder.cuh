// SPDX-License-Identifier: MIT
// The kernels of one variant's decoder, for a .cu file: MHLA_INSTANTIATE_CUDA_DECODER.
#pragma once

#include <mhla/cuda/decoding.cuh>
#include <type_traits>

// Function types are written before the function's name: after the name of a function of mhla, the
// caller's `Attention` would be looked up inside mhla.

/// \addtogroup cuda
/// \{

/// Compiles the mhla::CudaDecoder of `Variant` on tensors of `Scalar`, in a .cu file of the
/// program:
///
///     using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal>;
///     MHLA_INSTANTIATE_CUDA_DECODER(Sequence, float);
///
/// Otherwise as MHLA_INSTANTIATE_CUDA.
#define MHLA_INSTANTIATE_CUDA_DECODER(Variant, Scalar)                                    \
  template std::type_identity_t<void(                                                     \
      const mhla::CudaDevice&,                                                            \
      const mhla::cuda::DecoderParts<Variant, mhla::Accumulator<Scalar>>&,                \
      const mhla::TensorView<const mhla::Accumulator<Scalar>, 3>&)>                       \
      mhla::cuda::run_decoder_setup<Variant, Scalar>;                                     \
  template std::type_identity_t<void(                                                     \
      const mhla::TensorView<const Scalar, 4>&, const mhla::TensorView<const Scalar, 4>&, \
      const mhla::TensorView<const Scalar, 4>&, const mhla::TensorView<Scalar, 4>&)>      \
      mhla::cuda::require_step_memory<Variant, Scalar>;                                   \
  template std::type_identity_t<void(                                                     \
      const mhla::CudaDevice&,                                                            \
      const mhla::cuda::DecoderParts<Variant, mhla::Accumulator<Scalar>>&, mhla::Index,   \
      const mhla::TensorView<const Scalar, 4>&, const mhla::TensorView<const Scalar, 4>&, \
      const mhla::TensorView<const Scalar, 4>&, const mhla::TensorView<Scalar, 4>&)>      \
      mhla::cuda::run_decode_tile<Variant, Scalar>;                                       \
  template std::type_identity_t<void(                                                     \
      const mhla::CudaDevice&,                                                            \
      const mhla::cuda::DecoderParts<Variant, mhla::Accumulator<Scalar>>&, mhla::Index,   \
      mhla::Index)>                                                                       \
      mhla::cuda::run_decoder_reset<Variant, Scalar>;                                     \
  template std::type_identity_t<void(                                                     \
      const mhla::CudaDevice&,                                                            \
      const mhla::cuda::DecodeMemory<Variant, mhla::Accumulator<Scalar>>&,                \
      const mhla::cuda::DecodeMemory<Variant, mhla::Accumulator<Scalar>>&)>               \
      mhla::cuda::run_decoder_copy<Variant, Scalar>

/// \}
