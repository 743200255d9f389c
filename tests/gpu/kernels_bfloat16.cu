// SPDX-License-Identifier: MIT
// Kernels of the variants of every scalar on tensors of BFloat16, but for those of Language's
// passes, which are the benchmark's (CMakeLists.txt) and have fused ones among them.
#include <mhla/cuda/instantiate.cuh>
#include <mhla/cuda/instantiate_decoder.cuh>

#include "variants.hpp"

MHLA_INSTANTIATE_CUDA(gpu::Image, mhla::BFloat16);
MHLA_INSTANTIATE_CUDA(gpu::CausalKeySum, mhla::BFloat16);
MHLA_INSTANTIATE_CUDA_DECODER(gpu::Language, mhla::BFloat16);
MHLA_INSTANTIATE_CUDA_DECODER(gpu::CausalKeySum, mhla::BFloat16);
