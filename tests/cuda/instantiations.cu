// SPDX-License-Identifier: MIT
// One variant or two for every policy, layout of the batch and scalar: each must compile for every
// architecture, without a warning.
#include <mhla/cuda/instantiate.cuh>
#include <mhla/cuda/instantiate_decoder.cuh>
#include <mhla/cuda/instantiate_heads.cuh>
#include <mhla/cuda/instantiate_stages.cuh>

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

// A user's own mixing, S~_i = w S_i.
struct Scaled {
  static constexpr bool causal = false;

  void require_parameters(const mhla::MixingLayout&, mhla::Index, mhla::Index) const {}
  mhla::Index num_coefficients(const mhla::MixingLayout&) const { return 1; }
  mhla::Index num_rows(const mhla::MixingLayout& layout) const { return 2 * layout.key_blocks(); }
  template <class Visit>
  void for_each_product(const mhla::MixingLayout& layout, Visit&& visit) const {
    const mhla::Index blocks = layout.key_blocks();
    visit(mhla::MixingProduct{0, 1, blocks, 0, 1, 1, false, false, 1, blocks});
  }
  template <class A>
  MHLA_HOST_DEVICE void coefficients(const mhla::MixingLayout&,
                                     const mhla::TensorView<const A, 2>& mix,
                                     const mhla::Span<A>& to) const {
    to[0] = mix(0, 0);
  }
  template <class A>
  MHLA_HOST_DEVICE void vjp(const mhla::MixingLayout&, const mhla::TensorView<const A, 2>&,
                            const mhla::Span<const A>& grad,
                            const mhla::TensorView<A, 2>& grad_mix) const {
    grad_mix(0, 0) += grad[0];
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
using Recurrent = Attention<Relu, Blocks1D, Causal, MixedKeySum, NoRotation, RecurrentMixing>;
using Separable =
    Attention<Relu, Blocks2D, Bidirectional, Unnormalized, NoRotation, SeparableMixing>;
using OwnMixing =
    Attention<Relu, Blocks1D, Bidirectional, Unnormalized, NoRotation, instantiations::Scaled>;

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
MHLA_INSTANTIATE_CUDA(Recurrent, float);
MHLA_INSTANTIATE_CUDA(Separable, BFloat16);
MHLA_INSTANTIATE_CUDA(OwnMixing, float);

MHLA_INSTANTIATE_CUDA_DECODER(Language, Half);
MHLA_INSTANTIATE_CUDA_DECODER(Own, float);
MHLA_INSTANTIATE_CUDA_DECODER(Recurrent, float);

MHLA_INSTANTIATE_CUDA_STAGES(Video, BFloat16);
MHLA_INSTANTIATE_CUDA_STAGES(Language, Half);
MHLA_INSTANTIATE_CUDA_STAGES(Chunks, float);
MHLA_INSTANTIATE_CUDA_STAGES(PaddedVision, BFloat16);

MHLA_INSTANTIATE_CUDA_HEADS(float);
MHLA_INSTANTIATE_CUDA_HEADS(double);
MHLA_INSTANTIATE_CUDA_HEADS(BFloat16);
MHLA_INSTANTIATE_CUDA_HEADS(Half);
