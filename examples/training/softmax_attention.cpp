// SPDX-License-Identifier: MIT
#include "softmax_attention.hpp"

#include <cmath>

namespace training {

namespace {

Scalar scale(const Matrix& keys) { return Scalar(1) / std::sqrt(static_cast<Scalar>(keys.cols())); }

/// p [tokens, tokens], 0 where a key is not seen.
Matrix weights(bool is_causal, const Matrix& queries, const Matrix& keys) {
  Matrix p = scale(keys) * queries * keys.transpose();
  for (Index t = 0; t < p.rows(); ++t) {
    auto seen = p.row(t).head(is_causal ? t + 1 : p.cols()).array();
    seen = (seen - seen.maxCoeff()).exp().eval();
    seen /= seen.sum();
    p.row(t).tail(p.cols() - seen.size()).setZero();
  }
  return p;
}

Matrix rotated(const AnyAttention& attention, Matrix x, int direction) {
  attention.rotate(x, direction);
  return x;
}

template <class F>
void for_each_head(const ConstView& q, const F& f) {
  for (Index b = 0; b < q.extent[0]; ++b)
    for (Index h = 0; h < q.extent[1]; ++h) f(b, h);
}

using Strided = Eigen::OuterStride<>;
Eigen::Map<const Matrix, 0, Strided> head(const ConstView& x, Index b, Index h) {
  return {&x(b, h, 0, 0), x.extent[2], x.extent[3], Strided(x.stride[2])};
}
Eigen::Map<Matrix, 0, Strided> head(const View& x, Index b, Index h) {
  return {&x(b, h, 0, 0), x.extent[2], x.extent[3], Strided(x.stride[2])};
}

}  // namespace

void softmax_forward(const AnyAttention& attention, const ConstView& q, const ConstView& k,
                     const ConstView& v, const View& y) {
  for_each_head(q, [&](Index b, Index h) {
    const Matrix queries = rotated(attention, head(q, b, h), +1);
    const Matrix keys = rotated(attention, head(k, b, h), +1);
    head(y, b, h).noalias() = weights(attention.is_causal(), queries, keys) * head(v, b, h);
  });
}

void softmax_backward(const AnyAttention& attention, const ConstView& q, const ConstView& k,
                      const ConstView& v, const ConstView& dy, const View& dq, const View& dk,
                      const View& dv) {
  for_each_head(q, [&](Index b, Index h) {
    const Matrix queries = rotated(attention, head(q, b, h), +1);
    const Matrix keys = rotated(attention, head(k, b, h), +1);
    const Matrix p = weights(attention.is_causal(), queries, keys);
    head(dv, b, h).noalias() = p.transpose() * head(dy, b, h);
    // Of a score s_tj: p_tj (dp_tj - sum_i p_ti dp_ti), and p is 0 where a key is not seen.
    Matrix ds = head(dy, b, h) * head(v, b, h).transpose();
    const Values mean = (p.array() * ds.array()).rowwise().sum();
    ds = p.array() * (ds.array().colwise() - mean) * scale(keys);
    head(dq, b, h) = rotated(attention, ds * keys, -1);
    head(dk, b, h) = rotated(attention, ds.transpose() * queries, -1);
  });
}

}  // namespace training
