// SPDX-License-Identifier: MIT
// The kernels of one variant's decoder, for a .cu file of the program:
//
//   #include <mhla/cuda/instantiate_decoder.cuh>
//   using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal>;
//   MHLA_INSTANTIATE_CUDA_DECODER(Attention, float);
#pragma once

#include <mhla/cuda/decoding.cuh>
#include <type_traits>

// The types of the functions come first and as one: behind the name of a function of mhla, the
// caller's `Attention` would be looked up in there.

/// Compiles the decoder of `Variant` on tensors of `Scalar`: what <mhla/cuda/decoding.hpp> calls.
/// As MHLA_INSTANTIATE_CUDA otherwise.
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
