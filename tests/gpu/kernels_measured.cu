// SPDX-License-Identifier: MIT
// Kernels of the variants that bench/gpu.cpp measures, on tensors of BFloat16.
#include <mhla/cuda/instantiate.cuh>

#include "bench/gpu_shapes.hpp"
#include "compiled_passes.cuh"

MHLA_GPU_PASSES(extern, bench::GpuImage, mhla::BFloat16, mhla::HeadDims<64, 64>);
MHLA_GPU_PASSES(extern, bench::GpuImage, mhla::BFloat16, mhla::HeadDims<72, 72>);
MHLA_GPU_PASSES(extern, bench::GpuVideo, mhla::BFloat16, mhla::HeadDims<128, 128>);
MHLA_GPU_PASSES(extern, bench::GpuLanguage, mhla::BFloat16, mhla::HeadDims<128, 128>);
MHLA_GPU_PASSES(extern, bench::GpuLanguage, mhla::BFloat16, mhla::HeadDims<128, 256>);
MHLA_GPU_PASSES(extern, bench::GpuLanguage, mhla::BFloat16, mhla::HeadDims<256, 256>);

MHLA_INSTANTIATE_CUDA(bench::GpuImage, mhla::BFloat16, mhla::HeadDims<64, 64>,
                      mhla::HeadDims<72, 72>);
MHLA_INSTANTIATE_CUDA(bench::GpuVideo, mhla::BFloat16, mhla::HeadDims<128, 128>);
MHLA_INSTANTIATE_CUDA(bench::GpuLanguage, mhla::BFloat16, mhla::HeadDims<128, 128>,
                      mhla::HeadDims<128, 256>, mhla::HeadDims<256, 256>);
