// SPDX-License-Identifier: MIT
// Softmax attention with rotary positions (arXiv 1706.03762, 2104.09864), forward and backward, in
// the plainest way: a tokens x tokens matrix for each head. For comparison only.
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <mhla/core/tensor_view.hpp>
#include <mhla/policy/causality.hpp>
#include <mhla/policy/rotation.hpp>
#include <type_traits>

#include "parameters.hpp"

namespace layers {

/// In the place of MHLA's `Variant`: with its causality, its grid and its rotation.
template <class T, class Variant>
class SoftmaxAttention {
  using View = mhla::TensorView<T, 4>;
  using ConstView = mhla::TensorView<const T, 4>;

 public:
  explicit SoftmaxAttention(const Variant& variant) : variant_(variant) {}

  void forward(const ConstView& q, const ConstView& k, const ConstView& v, const View& y) const {
    for_each_head(q, [&](Index b, Index h) {
      const Matrix<T> queries = rotated(head(q, b, h), +1);
      const Matrix<T> keys = rotated(head(k, b, h), +1);
      head(y, b, h).noalias() = weights(queries, keys) * head(v, b, h);
    });
  }

  void backward(const ConstView& q, const ConstView& k, const ConstView& v, const ConstView& dy,
                const View& dq, const View& dk, const View& dv) const {
    for_each_head(q, [&](Index b, Index h) {
      const Matrix<T> queries = rotated(head(q, b, h), +1);
      const Matrix<T> keys = rotated(head(k, b, h), +1);
      const Matrix<T> p = weights(queries, keys);
      head(dv, b, h).noalias() = p.transpose() * head(dy, b, h);
      // Of a score s_tj: p_tj (dp_tj - sum_i p_ti dp_ti), and p is 0 where a key is not seen.
      Matrix<T> ds = head(dy, b, h) * head(v, b, h).transpose();
      const Eigen::Array<T, Eigen::Dynamic, 1> mean = (p.array() * ds.array()).rowwise().sum();
      ds = p.array() * (ds.array().colwise() - mean) * scale(keys);
      head(dq, b, h) = rotated(ds * keys, -1);
      head(dk, b, h) = rotated(ds.transpose() * queries, -1);
    });
  }

 private:
  static T scale(const Matrix<T>& keys) { return T(1) / std::sqrt(static_cast<T>(keys.cols())); }

  /// p [tokens, tokens], 0 where a key is not seen.
  static Matrix<T> weights(const Matrix<T>& queries, const Matrix<T>& keys) {
    constexpr bool causal = std::is_same_v<typename Variant::CausalityType, mhla::Causal>;
    Matrix<T> p = scale(keys) * queries * keys.transpose();
    for (Index t = 0; t < p.rows(); ++t) {
      auto seen = p.row(t).head(causal ? t + 1 : p.cols()).array();
      seen = (seen - seen.maxCoeff()).exp().eval();
      seen /= seen.sum();
      p.row(t).tail(p.cols() - seen.size()).setZero();
    }
    return p;
  }

  /// Turns the pairs of each token by the angles of its place; direction -1 turns back.
  Matrix<T> rotated(Matrix<T> x, int direction) const {
    if constexpr (!std::is_same_v<Rotation, mhla::NoRotation>) {
      const mhla::Grid grid = variant_.blocks.grid_of(x.rows());
      const auto [step, gap] = variant_.rotation.pairs(x.cols());
      Index first = 0;
      for (int axis = 0; axis < rank; ++axis) {
        const Index count = variant_.rotation.axis_pairs(axis, rank, x.cols() / 2);
        for (Index j = 0; j < count; ++j, first += step)
          turn(x, first, first + gap, direction * variant_.rotation.frequency(j, count),
               [&](Index t) { return grid.coordinate(t, 3 - rank + axis); });
      }
    }
    return x;
  }
  template <class Position>
  static void turn(Matrix<T>& x, Index column, Index other, double frequency,
                   const Position& position) {
    for (Index t = 0; t < x.rows(); ++t) {
      const double angle = frequency * static_cast<double>(position(t));
      const T cosine = static_cast<T>(std::cos(angle));
      const T sine = static_cast<T>(std::sin(angle));
      const T first = x(t, column);
      const T second = x(t, other);
      x(t, column) = cosine * first - sine * second;
      x(t, other) = sine * first + cosine * second;
    }
  }

  template <class F>
  static void for_each_head(const ConstView& q, const F& f) {
    for (Index b = 0; b < q.extent[0]; ++b)
      for (Index h = 0; h < q.extent[1]; ++h) f(b, h);
  }

  using Strided = Eigen::OuterStride<>;
  static Eigen::Map<const Matrix<T>, 0, Strided> head(const ConstView& x, Index b, Index h) {
    return {&x(b, h, 0, 0), x.extent[2], x.extent[3], Strided(x.stride[2])};
  }
  static Eigen::Map<Matrix<T>, 0, Strided> head(const View& x, Index b, Index h) {
    return {&x(b, h, 0, 0), x.extent[2], x.extent[3], Strided(x.stride[2])};
  }

  static constexpr int rank = Variant::GeometryType::rank;
  using Rotation = typename Variant::RotationType;

  Variant variant_;
};

}  // namespace layers
