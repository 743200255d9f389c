// SPDX-License-Identifier: MIT
// Backward needs the vector-Jacobian product of a row-wise map.
// EXPECT: mhla: the 1st argument of Attention must be a feature map: trivially copyable, with T
// value(T) const and T derivative(T) const for every floating-point T, or with
// feature_dim(key_dim), value(in, out) and vjp(in, grad, out) on mhla::Span
#include <mhla/policy/variant.hpp>

struct Half {
  mhla::Index feature_dim(mhla::Index key_dim) const { return key_dim; }
  template <class T>
  void value(mhla::Span<const T> in, mhla::Span<T> out) const {
    for (mhla::Index c = 0; c < in.size; ++c) out[c] = in[c];
  }
};

struct Whole : Half {
  template <class T>
  void vjp(mhla::Span<const T> in, mhla::Span<const T> grad, mhla::Span<T> out) const {
    for (mhla::Index c = 0; c < in.size; ++c) out[c] = grad[c];
  }
};

void use() {
  const mhla::Attention<Whole, mhla::Blocks1D> right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<Half, mhla::Blocks1D> wrong;
  (void)wrong;
#endif
}
