// SPDX-License-Identifier: MIT
// The stages of one variant, for a .cu file of the program: MHLA_INSTANTIATE_CUDA_STAGES.
#pragma once

#include <mhla/cuda/stages.cuh>

/// \addtogroup cuda
/// \{

/// Compiles mhla::CudaStages, and cuda_sequence_parallel, of `Variant`, packed or not, on tensors
/// of `Scalar`, in the global namespace of a .cu file of the program. `Variant` contains no comma:
/// give it a name.
#define MHLA_INSTANTIATE_CUDA_STAGES(Variant, Scalar) \
  template struct mhla::cuda::StageKernels<Variant, Scalar>

/// \}
