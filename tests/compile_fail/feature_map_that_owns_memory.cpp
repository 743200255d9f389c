// SPDX-License-Identifier: MIT
// A policy is copied into kernels byte by byte.
// EXPECT: mhla: the 1st argument of Attention must be a feature map: trivially copyable, with T
// value(T) const and T derivative(T) const for every floating-point T, or with
// feature_dim(key_dim), value(in, out) and vjp(in, grad, out) on mhla::Span
#include <mhla/policy/variant.hpp>
#include <vector>

template <class Weights>
struct Scaled {
  Weights weights{};

  template <class T>
  T value(T x) const {
    return x;
  }
  template <class T>
  T derivative(T) const {
    return T(1);
  }
};

using Owning = Scaled<std::vector<float>>;
using Borrowing = Scaled<mhla::Span<const float>>;

void use() {
  const mhla::Attention<Borrowing, mhla::Blocks1D> right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<Owning, mhla::Blocks1D> wrong;
  (void)wrong;
#endif
}
