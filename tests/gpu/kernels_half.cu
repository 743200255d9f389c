// SPDX-License-Identifier: MIT
// Kernels of the variants of every scalar on tensors of Half.
#include <mhla/cuda/instantiate.cuh>

#include "variants.hpp"

#define MHLA_GPU_KERNELS(Variant) MHLA_INSTANTIATE_CUDA(gpu::Variant, mhla::Half);
MHLA_GPU_VARIANTS_OF_EVERY_SCALAR(MHLA_GPU_KERNELS)
