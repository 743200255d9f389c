// SPDX-License-Identifier: MIT
// MixedProduct needs every token of every block.
// EXPECT: mhla: MixedProduct ties a token to the same offset of other blocks, which a mask may take
// away: use MixedKeySum or Unnormalized for a padded batch
#include <mhla/attention.hpp>
#include <mhla/packed.hpp>

template <class Normalizer>
using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, Normalizer>;

void use(const mhla::TensorView<const bool, 2>& mask) {
  static_cast<void>(mhla::padded(Attention<mhla::Unnormalized>{}, mask));
#ifndef MHLA_CONTROL
  static_cast<void>(mhla::padded(Attention<mhla::MixedProduct>{}, mask));
#endif
}
