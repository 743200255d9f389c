// SPDX-License-Identifier: MIT
// Packed sequences have blocks of their own, which no range of a stage names.
// EXPECT: mhla: the blocks of Stages are those of every batch item: give them the attention
// that was packed
#include <mhla/attention.hpp>
#include <mhla/packed.hpp>
#include <mhla/stages.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

void use(const Attention& attention, const std::vector<std::int32_t>& offsets) {
  const auto packed = mhla::packed(attention, offsets);
  const mhla::Stages<Attention, float> right(attention, {});
#ifndef MHLA_CONTROL
  const mhla::Stages<mhla::Packed<Attention, std::int32_t>, float> wrong(packed, {});
#endif
  static_cast<void>(packed);
}
