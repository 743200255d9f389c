// SPDX-License-Identifier: MIT
// The kernels of cuda_head_parallel, for a .cu file of the program: MHLA_INSTANTIATE_CUDA_HEADS.
#pragma once

#include <mhla/cuda/heads.cuh>

/// \addtogroup cuda
/// \{

/// Compiles what mhla::cuda_head_parallel does to tensors of `Scalar`, of any variant, besides the
/// passes of MHLA_INSTANTIATE_CUDA, once in the global namespace of a .cu file of the program.
#define MHLA_INSTANTIATE_CUDA_HEADS(Scalar) template struct mhla::cuda::HeadKernels<Scalar>

/// \}
