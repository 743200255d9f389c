// SPDX-License-Identifier: MIT
// A feature map is evaluated in the type of the tensors.
// EXPECT: mhla: the 1st argument of Attention must be a feature map: trivially copyable, with T
// value(T) const and T derivative(T) const for every floating-point T, or with
// feature_dim(key_dim), value(in, out) and vjp(in, grad, out) on mhla::Span
#include <mhla/policy/variant.hpp>

struct InDouble {
  double value(double x) const { return x * x; }
  double derivative(double x) const { return x + x; }
};

struct Generic {
  template <class T>
  T value(T x) const {
    return x * x;
  }
  template <class T>
  T derivative(T x) const {
    return x + x;
  }
};

void use() {
  const mhla::Attention<Generic, mhla::Blocks1D> right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<InDouble, mhla::Blocks1D> wrong;
  (void)wrong;
#endif
}
