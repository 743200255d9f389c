// SPDX-License-Identifier: MIT
// A normalizer of one's own is not among the three.
// EXPECT: mhla: the 4th argument of Attention must be MixedKeySum, MixedProduct or Unnormalized
#include <mhla/policy/variant.hpp>

struct Mean {
  double epsilon = 1e-6;
};

void use() {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, mhla::Unnormalized> right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, Mean> wrong;
  (void)wrong;
#endif
}
