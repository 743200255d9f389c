// SPDX-License-Identifier: MIT
// Kernels of the variants of double alone.
#include <mhla/cuda/instantiate.cuh>

#include "variants.hpp"

#define MHLA_GPU_KERNELS(Variant) MHLA_INSTANTIATE_CUDA(gpu::Variant, double);
MHLA_GPU_VARIANTS_OF_DOUBLE(MHLA_GPU_KERNELS)
