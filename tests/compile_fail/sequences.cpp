// SPDX-License-Identifier: MIT
// Attentions that are not decoded, packed, padded or run in stages.
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
  // What sees later tokens cannot go token by token.
  // EXPECT: mhla: a Decoder generates token by token: its attention must be Causal
  const mhla::Decoder<Mixed<mhla::BlockCausal>, float> sees_its_block({}, mix, {});
  // Of a mixing of one's own a decoder does not know the state.
  // EXPECT: mhla: a Decoder keeps all summaries or the states of a recurrence
  const mhla::Decoder<Mixed<mhla::Causal, Own>, float> own_mixing({}, mix, {});
  // A decoder's sequences have lengths of their own already.
  // EXPECT: mhla: the sequences of a Decoder have lengths of their own: give it the attention
  const mhla::Decoder<mhla::Packed<Sequence, std::int32_t>, float> of_packed(packed, mix, {});
  // One layout for a batch.
  // EXPECT: mhla: a batch is either packed or padded, and only once
  static_cast<void>(mhla::padded(packed, mask));
  // MixedProduct needs blocks of one size, and every token of every block, which a stage has not.
  // EXPECT: mhla: MixedProduct needs blocks of one size, which sequences of any length do not have:
  static_cast<void>(mhla::packed(Product{}, offsets));
  // EXPECT: mhla: MixedProduct ties a token to the same offset of other blocks, which a mask may
  // take
  static_cast<void>(mhla::padded(Product{}, mask));
  // EXPECT: mhla: MixedProduct ties a token to the same offset of every other block, which a
  const mhla::Stages<Product, float> of_product({}, mhla::Shape{});
  // Packed images of one grid would be a batch.
  // EXPECT: mhla: packed sequences are cut into Blocks1D: a grid has one extent for all
  static_cast<void>(mhla::packed(Image{}, offsets));
  // The masks of a whole batch are not those of a stage's tokens.
  // EXPECT: mhla: the masks of Stages are those of a stage's tokens: give Stages the attention that
  const mhla::Stages<mhla::Padded<Plain>, float> of_padded(padded, {});
  // A separable mixing has no rows of which a stage could be given some.
  // EXPECT: mhla: Stages have rows of the mixing matrix, or of RecurrentMixing's parameters: for
  const mhla::Stages<Mixed<mhla::Bidirectional, mhla::SeparableMixing>, float> separable(
      {}, mhla::Shape{});
#endif
  static_cast<void>(packed);
  static_cast<void>(padded);
}
