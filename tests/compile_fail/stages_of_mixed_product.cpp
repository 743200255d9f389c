// SPDX-License-Identifier: MIT
// Under MixedProduct a query's denominator needs queries of every block.
// EXPECT: mhla: MixedProduct ties a token to the same offset of every other block, which a
// stage does not have: use MixedKeySum or Unnormalized for Stages
#include <mhla/attention.hpp>
#include <mhla/stages.hpp>

template <class Normalizer>
using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, Normalizer>;

void use() {
  const mhla::Stages<Sequence<mhla::MixedKeySum>, float> right({}, mhla::Shape{});
#ifndef MHLA_CONTROL
  const mhla::Stages<Sequence<mhla::MixedProduct>, float> wrong({}, mhla::Shape{});
#endif
}
