// SPDX-License-Identifier: MIT
// A block geometry says how it cuts.
// EXPECT: mhla: the 2nd argument of Attention must be a block geometry: Blocks1D, Blocks2D,
// Blocks3D, or a type with rank, unset() and grid_of(tokens)
#include <mhla/policy/variant.hpp>

struct Half {
  static constexpr int rank = 1;
  bool unset() const { return false; }
};

struct Whole : Half {
  mhla::Grid grid_of(mhla::Index tokens) const { return {{1, 1, tokens}, {1, 1, 8}}; }
};

void use() {
  const mhla::Attention<mhla::Relu, Whole> right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<mhla::Relu, Half> wrong;
  (void)wrong;
#endif
}
