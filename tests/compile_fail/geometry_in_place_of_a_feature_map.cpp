// SPDX-License-Identifier: MIT
// The first two arguments, exchanged.
// EXPECT: mhla: the 1st argument of Attention must be a feature map: trivially copyable, with T
// value(T) const and T derivative(T) const for every floating-point T, or with
// feature_dim(key_dim), value(in, out) and vjp(in, grad, out) on mhla::Span
#include <mhla/policy/variant.hpp>

void use() {
  const mhla::Attention<mhla::Relu, mhla::Blocks2D> right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<mhla::Blocks2D, mhla::Relu> wrong;
  (void)wrong;
#endif
}
