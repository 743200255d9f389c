// SPDX-License-Identifier: MIT
// Kernels of what is measured on tensors of float; those on BFloat16 are also tested
// (tests/gpu/kernels_measured.cu).
#include <mhla/cuda/instantiate.cuh>

#include "gpu_shapes.hpp"

MHLA_INSTANTIATE_CUDA(bench::GpuImage, float);
MHLA_INSTANTIATE_CUDA(bench::GpuVideo, float);
MHLA_INSTANTIATE_CUDA(bench::GpuLanguage, float);
