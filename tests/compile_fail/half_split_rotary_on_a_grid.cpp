// SPDX-License-Identifier: MIT
// HalfSplitRotary has one position for each token.
// EXPECT: mhla: HalfSplitRotary has one axis: use AxialRotary with Blocks2D or Blocks3D
#include <mhla/policy/variant.hpp>

void use() {
  const mhla::Attention<mhla::Relu, mhla::Blocks2D, mhla::Bidirectional, mhla::MixedKeySum,
                        mhla::AxialRotary>
      right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<mhla::Relu, mhla::Blocks2D, mhla::Bidirectional, mhla::MixedKeySum,
                        mhla::HalfSplitRotary>
      wrong;
  (void)wrong;
#endif
}
