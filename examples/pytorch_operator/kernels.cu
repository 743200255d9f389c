// SPDX-License-Identifier: MIT
// The attention's kernels for a GPU. nvcc takes some minutes; strike out what you do not need here
// and in operator.cpp alike.
#include <mhla/cuda/instantiate.cuh>

#include "variants.hpp"

using SequenceNormalized = mhla_torch::Sequence<mhla::MixedKeySum>;
using SequenceUnnormalized = mhla_torch::Sequence<mhla::Unnormalized>;
using CausalNormalized = mhla_torch::Causal<mhla::MixedKeySum>;
using CausalUnnormalized = mhla_torch::Causal<mhla::Unnormalized>;
using VideoNormalized = mhla_torch::Video<mhla::MixedKeySum>;
using VideoUnnormalized = mhla_torch::Video<mhla::Unnormalized>;

// For fused kernels of 16-bit tensors add head dimensions: mhla::BFloat16, mhla::HeadDims<64, 64>.
#define MHLA_TORCH_KERNELS(Variant)       \
  MHLA_INSTANTIATE_CUDA(Variant, float);  \
  MHLA_INSTANTIATE_CUDA(Variant, double); \
  MHLA_INSTANTIATE_CUDA(Variant, mhla::BFloat16)

MHLA_TORCH_KERNELS(SequenceNormalized);
MHLA_TORCH_KERNELS(SequenceUnnormalized);
MHLA_TORCH_KERNELS(CausalNormalized);
MHLA_TORCH_KERNELS(CausalUnnormalized);
MHLA_TORCH_KERNELS(VideoNormalized);
MHLA_TORCH_KERNELS(VideoUnnormalized);
