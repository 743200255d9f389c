// SPDX-License-Identifier: MIT
// Packed images of one grid would be a batch.
// EXPECT: mhla: packed sequences are cut into Blocks1D: a grid has one extent for all
#include <mhla/attention.hpp>
#include <mhla/packed.hpp>

void use(const std::vector<std::int64_t>& offsets) {
  static_cast<void>(mhla::packed(mhla::Attention<mhla::Relu, mhla::Blocks1D>{}, offsets));
#ifndef MHLA_CONTROL
  static_cast<void>(mhla::packed(mhla::Attention<mhla::Relu, mhla::Blocks2D>{}, offsets));
#endif
}
