// SPDX-License-Identifier: MIT
// One layout for a batch.
// EXPECT: mhla: a batch is either packed or padded, and only once
#include <mhla/attention.hpp>
#include <mhla/packed.hpp>

const mhla::Attention<mhla::Relu, mhla::Blocks1D> attention{.blocks = {.block = 4}};

void use(const std::vector<std::int32_t>& offsets, const mhla::TensorView<const bool, 2>& mask) {
  static_cast<void>(mhla::padded(attention, mask));
#ifndef MHLA_CONTROL
  static_cast<void>(mhla::padded(mhla::packed(attention, offsets), mask));
#endif
  static_cast<void>(offsets);
}
