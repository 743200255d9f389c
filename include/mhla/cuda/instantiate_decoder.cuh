// SPDX-License-Identifier: MIT
// The kernels of one variant's decoder, for a .cu file: MHLA_INSTANTIATE_CUDA_DECODER.
#pragma once

#include <mhla/cuda/decoding.cuh>

/// \addtogroup cuda
/// \{

/// Compiles the mhla::CudaDecoder of `Variant` on tensors of `Scalar`, in a .cu file of the
/// program:
///
///     using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal>;
///     MHLA_INSTANTIATE_CUDA_DECODER(Sequence, float);
///
/// Otherwise as MHLA_INSTANTIATE_CUDA.
#define MHLA_INSTANTIATE_CUDA_DECODER(Variant, Scalar) \
  template struct mhla::cuda::DecoderKernels<Variant, Scalar>

/// \}
