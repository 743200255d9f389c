// SPDX-License-Identifier: MIT
// Kernels of the variants of every scalar on tensors of double.
#include <mhla/cuda/instantiate.cuh>
#include <mhla/cuda/instantiate_decoder.cuh>

#include "variants.hpp"

#define MHLA_GPU_KERNELS(Variant) MHLA_INSTANTIATE_CUDA(gpu::Variant, double);
MHLA_GPU_VARIANTS_OF_EVERY_SCALAR(MHLA_GPU_KERNELS)
MHLA_INSTANTIATE_CUDA(gpu::Recurrent, double);
MHLA_INSTANTIATE_CUDA_DECODER(gpu::Recurrent, double);
MHLA_INSTANTIATE_CUDA_DECODER(gpu::Language, double);
MHLA_INSTANTIATE_CUDA_DECODER(gpu::CausalKeySum, double);
