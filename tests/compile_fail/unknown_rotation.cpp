// SPDX-License-Identifier: MIT
// A rotation says which features it turns, and how fast.
// EXPECT: mhla: the 5th argument of Attention must be NoRotation, HalfSplitRotary, AxialRotary, or
// a type with pairs, axis_pairs and frequency
#include <mhla/policy/variant.hpp>

struct Theta {
  double theta = 10000;
};

void use() {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, mhla::MixedKeySum,
                        mhla::HalfSplitRotary>
      right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, mhla::MixedKeySum, Theta>
      wrong;
  (void)wrong;
#endif
}
