// SPDX-License-Identifier: MIT
// MixedProduct needs blocks of one size.
// EXPECT: mhla: MixedProduct needs blocks of one size, which sequences of any length do not have:
// use MixedKeySum or Unnormalized for a packed batch
#include <mhla/attention.hpp>
#include <mhla/packed.hpp>

template <class Normalizer>
using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, Normalizer>;

void use(const std::vector<std::int32_t>& offsets) {
  static_cast<void>(mhla::packed(Attention<mhla::MixedKeySum>{}, offsets));
#ifndef MHLA_CONTROL
  static_cast<void>(mhla::packed(Attention<mhla::MixedProduct>{}, offsets));
#endif
}
