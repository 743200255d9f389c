// SPDX-License-Identifier: MIT
// Offsets are 32 or 64 bits wide, and signed.
// EXPECT: mhla: the offsets of packed sequences are std::int32_t or std::int64_t
#include <mhla/attention.hpp>
#include <mhla/packed.hpp>

const mhla::Attention<mhla::Relu, mhla::Blocks1D> attention{.blocks = {.block = 4}};

void use(const std::vector<std::int32_t>& offsets,
         const std::vector<std::size_t>& unsigned_offsets) {
  static_cast<void>(mhla::packed(attention, offsets));
#ifndef MHLA_CONTROL
  static_cast<void>(mhla::packed(attention, unsigned_offsets));
#endif
  static_cast<void>(unsigned_offsets);
}
