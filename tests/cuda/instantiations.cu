// SPDX-License-Identifier: MIT
// One variant or two for every policy, layout of the batch and scalar: each must compile for every
// architecture, without a warning.
#include <mhla/cuda/instantiate.cuh>
#include <mhla/cuda/instantiate_decoder.cuh>

namespace instantiations {

// A user's own feature map.
struct Cube {
  template <class T>
  MHLA_HOST_DEVICE T value(T x) const {
    return x * x * x;
  }
  template <class T>
  MHLA_HOST_DEVICE T derivative(T x) const {
    return T(3) * x * x;
  }
};

}  // namespace instantiations

using namespace mhla;

using Vision = Attention<Relu, Blocks2D>;
using Video = Attention<EluPlusOne, Blocks3D, Bidirectional, Unnormalized, AxialRotary>;
using Products = Attention<SquaredRelu, Blocks2D, Bidirectional, MixedProduct>;
using Language = Attention<Softmax, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>;
using Chunks = Attention<Hedgehog, Blocks1D, BlockCausal>;
using Random = Attention<Favor<float>, Blocks1D>;
using Sparse = Attention<Dpfp, Blocks1D>;
using Own = Attention<instantiations::Cube, Blocks1D, Causal, Unnormalized>;
using PackedLanguage = Packed<Language, std::int32_t>;
using PaddedVision = Padded<Vision>;

MHLA_INSTANTIATE_CUDA(Vision, float);
MHLA_INSTANTIATE_CUDA(Vision, BFloat16);
MHLA_INSTANTIATE_CUDA(Video, BFloat16);
MHLA_INSTANTIATE_CUDA(Products, double);
MHLA_INSTANTIATE_CUDA(Language, Half);
MHLA_INSTANTIATE_CUDA(Chunks, float);
MHLA_INSTANTIATE_CUDA(Random, float);
MHLA_INSTANTIATE_CUDA(Sparse, Half);
MHLA_INSTANTIATE_CUDA(Own, float);
MHLA_INSTANTIATE_CUDA(PackedLanguage, Half);
MHLA_INSTANTIATE_CUDA(PaddedVision, BFloat16);

MHLA_INSTANTIATE_CUDA_DECODER(Language, Half);
MHLA_INSTANTIATE_CUDA_DECODER(Own, float);
