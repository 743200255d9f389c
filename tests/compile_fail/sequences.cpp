// SPDX-License-Identifier: MIT
// Attentions that are not decoded, packed, padded or run in stages.
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
#include <mhla/attention.hpp>
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
