// SPDX-License-Identifier: MIT
// Attentions that are not decoded, packed, padded or run in stages. What a CudaDevice does not
// evaluate: sums around an attention, operands that would have to be evaluated first, results that
// would have to be copied or converted; and what has no kernels.
// EXPECT: mhla: a Decoder generates token by token: its attention must be Causal
// EXPECT: mhla: a Decoder keeps all summaries or the states of a recurrence
// EXPECT: mhla: the sequences of a Decoder have lengths of their own: give it the attention
// EXPECT: mhla: a batch is either packed or padded, and only once
// EXPECT: mhla: MixedProduct needs blocks of one size, which sequences of any length do not have:
// EXPECT: mhla: MixedProduct ties a token to the same offset of other blocks, which a mask may
// EXPECT: mhla: MixedProduct ties a token to the same offset of every other block, which a
// EXPECT: mhla: packed sequences are cut into Blocks1D: a grid has one extent for all
// EXPECT: mhla: the masks of Stages are those of a stage's tokens: give Stages the attention that
// EXPECT: mhla: Stages have rows of the mixing matrix, or of RecurrentMixing's parameters: for
// EXPECT 2: mhla: a CudaDevice evaluates y.device(cuda) = attention(q, k, v, mix) and nothing
// EXPECT 3: mhla: on a CudaDevice q, k, v, mix and dy are TensorMaps of device memory,
// EXPECT: mhla: on a CudaDevice the result of attention(q, k, v, mix) is assigned to a
// EXPECT: mhla: the result of attention(q, k, v, mix) has the scalar type of q
// EXPECT: mhla: a CudaDevice computes with float, double, Eigen::bfloat16 and Eigen::half
// EXPECT: mhla: CudaStages have rows of the mixing matrix: use DenseMixing
// EXPECT: mhla: fused CUDA kernels exist for head dimensions
// EXPECT: mhla: MHLA_INSTANTIATE_CUDA(Variant, Scalar, ...) takes head dimensions after the
#include <mhla/attention.hpp>
#include <mhla/cuda.hpp>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/stages.hpp>
#include <mhla/decoding.hpp>
#include <mhla/packed.hpp>
#include <mhla/stages.hpp>

using Plain = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Image = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
using Product =
    mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, mhla::MixedProduct>;
template <class Causality, class Mixing = mhla::DenseMixing>
using Mixed = mhla::Attention<mhla::Relu, mhla::Blocks1D, Causality, mhla::Unnormalized,
                              mhla::NoRotation, Mixing>;
using Sequence = Mixed<mhla::Causal>;
struct Own : mhla::RecurrentMixing {};

void use(const std::vector<std::int32_t>& offsets, const mhla::TensorView<bool, 2>& mask,
         const mhla::TensorView<const float, 3>& mix) {
  const auto packed = mhla::packed(Sequence{}, offsets);
  const auto padded = mhla::padded(Plain{}, mask);
  const mhla::Decoder<Sequence, float> decoder({}, mix, {});
  const mhla::Decoder<Mixed<mhla::Causal, mhla::RecurrentMixing>, float> recurrent({}, mix, {});
  const mhla::Stages<Plain, float> stages({}, mhla::Shape{});
#ifndef MHLA_CONTROL
  const mhla::Decoder<Mixed<mhla::BlockCausal>, float> sees_its_block({}, mix, {});
  const mhla::Decoder<Mixed<mhla::Causal, Own>, float> own_mixing({}, mix, {});
  const mhla::Decoder<mhla::Packed<Sequence, std::int32_t>, float> of_packed(packed, mix, {});
  static_cast<void>(mhla::padded(packed, mask));
  static_cast<void>(mhla::packed(Product{}, offsets));
  static_cast<void>(mhla::padded(Product{}, mask));
  const mhla::Stages<Product, float> of_product({}, mhla::Shape{});
  static_cast<void>(mhla::packed(Image{}, offsets));
  const mhla::Stages<mhla::Padded<Plain>, float> of_padded(padded, {});
  const mhla::Stages<Mixed<mhla::Bidirectional, mhla::SeparableMixing>, float> separable(
      {}, mhla::Shape{});
#endif
  static_cast<void>(packed);
  static_cast<void>(padded);
}

template <class T, int rank>
using Tensor = Eigen::Tensor<T, rank, Eigen::RowMajor>;
template <class Dims>
using HeadDims = mhla::cuda::HeadDimsOf<Dims>;

struct Call {
  Plain attention;
  Eigen::TensorMap<Tensor<float, 4>> q, y;
  Eigen::TensorMap<Tensor<float, 3>> mix;
  Eigen::TensorMap<Tensor<double, 4>> wide;
  Tensor<long double, 4> longer;
  Tensor<long double, 3> longer_mix;
  const mhla::CudaDevice& cuda;

  void use() {
    mhla::tokens_first(y).device(cuda) = attention(mhla::tokens_first(q), q, q, mix);
    mhla::gradients(y, mhla::skip, mhla::skip, mhla::skip).device(cuda) =
        attention.backward(q, q, q, mix, q);
    const mhla::CudaStages<Sequence, float> stages({}, mhla::Shape{});
    HeadDims<mhla::HeadDims<128, 256>>::list();
#ifndef MHLA_CONTROL
    y.device(cuda) += attention(q, q, q, mix);
    y.device(cuda) = q - attention(q, q, q, mix);
    y.device(cuda) = attention(q * 2.f, q, q, mix);
    y.device(cuda) = attention(q, q, q, mix.abs());
    mhla::gradients(y, mhla::skip, mhla::skip, mhla::skip).device(cuda) =
        attention.backward(q, q, q, mix, q - q);
    y.slice(y.dimensions(), y.dimensions()).device(cuda) = attention(q, q, q, mix);
    wide.device(cuda) = attention(q, q, q, mix);
    longer.device(cuda) = attention(longer, longer, longer, longer_mix);
    const mhla::CudaStages<Mixed<mhla::Causal, mhla::RecurrentMixing>, float> recurrent(
        {}, mhla::Shape{});
    HeadDims<mhla::HeadDims<80, 80>>::list();
    static_cast<void>(HeadDims<mhla::BFloat16>::size);
#endif
  }
};
