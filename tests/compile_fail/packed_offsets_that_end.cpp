// SPDX-License-Identifier: MIT
// Offsets are borrowed, so a temporary will not do.
// EXPECT: deleted
#include <mhla/attention.hpp>
#include <mhla/packed.hpp>

const mhla::Attention<mhla::Relu, mhla::Blocks1D> attention{.blocks = {.block = 4}};

void use() {
  const std::vector<std::int32_t> offsets = {0, 5, 12};
  const auto right = mhla::packed(attention, offsets);
  static_cast<void>(right);
#ifndef MHLA_CONTROL
  const auto wrong = mhla::packed(attention, std::vector<std::int32_t>{0, 5, 12});
  static_cast<void>(wrong);
#endif
}
