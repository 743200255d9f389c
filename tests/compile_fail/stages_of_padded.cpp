// SPDX-License-Identifier: MIT
// The masks of a whole batch are not those of a stage's tokens.
// EXPECT: mhla: the masks of Stages are those of a stage's tokens: give Stages the attention that
// was padded, and masks to padded()
#include <mhla/attention.hpp>
#include <mhla/packed.hpp>
#include <mhla/stages.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

void use(const Attention& attention, const mhla::TensorView<std::uint8_t, 2>& mask) {
  const auto padded = mhla::padded(attention, mask);
  const mhla::Stages<Attention, float> right(attention, {});
#ifndef MHLA_CONTROL
  const mhla::Stages<mhla::Padded<Attention>, float> wrong(padded, {});
#endif
  static_cast<void>(padded);
}
