// SPDX-License-Identifier: MIT
// Kernels of the variants of every scalar on tensors of BFloat16, but for Language's, which are the
// benchmark's (CMakeLists.txt) and have fused ones among them.
#include <mhla/cuda/instantiate.cuh>

#include "variants.hpp"

MHLA_INSTANTIATE_CUDA(gpu::Image, mhla::BFloat16);
MHLA_INSTANTIATE_CUDA(gpu::CausalKeySum, mhla::BFloat16);
