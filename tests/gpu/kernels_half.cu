// SPDX-License-Identifier: MIT
// Kernels of the variants of every scalar on tensors of Half, and fused ones.
#include <mhla/cuda/instantiate.cuh>
#include <mhla/cuda/instantiate_decoder.cuh>

#include "compiled_passes.cuh"
#include "variants.hpp"

MHLA_GPU_PASSES(extern, gpu::Image, mhla::Half, mhla::HeadDims<72, 72>);
MHLA_GPU_PASSES(extern, gpu::CausalSum, mhla::Half, mhla::HeadDims<64, 64>);

MHLA_INSTANTIATE_CUDA(gpu::Image, mhla::Half, mhla::HeadDims<72, 72>);
MHLA_INSTANTIATE_CUDA(gpu::CausalSum, mhla::Half, mhla::HeadDims<64, 64>);
MHLA_INSTANTIATE_CUDA(gpu::Language, mhla::Half);
MHLA_INSTANTIATE_CUDA(gpu::CausalKeySum, mhla::Half);
MHLA_INSTANTIATE_CUDA_DECODER(gpu::Language, mhla::Half);
MHLA_INSTANTIATE_CUDA_DECODER(gpu::CausalKeySum, mhla::Half);
