// SPDX-License-Identifier: MIT
// Kernels of the variants of every scalar on tensors of float.
#include <mhla/cuda/instantiate.cuh>
#include <mhla/cuda/instantiate_decoder.cuh>

#include "variants.hpp"

#define MHLA_GPU_KERNELS(Variant) MHLA_INSTANTIATE_CUDA(gpu::Variant, float);
MHLA_GPU_VARIANTS_OF_EVERY_SCALAR(MHLA_GPU_KERNELS)
MHLA_INSTANTIATE_CUDA(gpu::Recurrent, float);
MHLA_INSTANTIATE_CUDA_DECODER(gpu::Recurrent, float);
MHLA_INSTANTIATE_CUDA_DECODER(gpu::Language, float);
MHLA_INSTANTIATE_CUDA_DECODER(gpu::CausalKeySum, float);
