// SPDX-License-Identifier: MIT
// A decoder's sequences have lengths of their own already.
// EXPECT: mhla: the sequences of a Decoder have lengths of their own: give it the attention
// that was packed or padded
#include <mhla/attention.hpp>
#include <mhla/decoding.hpp>
#include <mhla/packed.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal>;

void use(const Attention& attention, const std::vector<std::int32_t>& offsets,
         const mhla::TensorView<const float, 3>& mix) {
  const auto packed = mhla::packed(attention, offsets);
  const mhla::Decoder<Attention, float> right(attention, mix, {});
#ifndef MHLA_CONTROL
  const mhla::Decoder<mhla::Packed<Attention, std::int32_t>, float> wrong(packed, mix, {});
#endif
  static_cast<void>(packed);
}
