// SPDX-License-Identifier: MIT
// The layers without attention: a linear map, RMSNorm, and the gate. Each row is a token. What
// forward computes, backward differentiates: from the gradient of its result it makes that of its
// input and, in `gradient`, that of its parameters.
#pragma once

#include <cmath>
#include <string>

#include "parameters.hpp"

namespace char_lm {

/// y = x W.
class Linear {
 public:
  Linear(ParameterList& list, const std::string& name, Index in, Index out, double gain = 1)
      : weight_(list.add(name, in, out, 0, gain / std::sqrt(static_cast<double>(in)))) {}

  template <class T>
  void forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y) const {
    y.noalias() = x * weight_.in(values);
  }
  template <class T>
  void add_forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y) const {
    y.noalias() += x * weight_.in(values);
  }
  template <class T>
  void backward(const Values<T>& values, const Matrix<T>& x, const Matrix<T>& dy, Matrix<T>& dx,
                Values<T>& gradient) const {
    weight_.in(gradient).noalias() = x.transpose() * dy;
    dx.noalias() = dy * weight_.in(values).transpose();
  }

 private:
  Parameter weight_;
};

/// y = x / sqrt(mean(x^2) + epsilon) * gain, over groups of features: all of a token, or a head's.
class RmsNorm {
 public:
  RmsNorm(ParameterList& list, const std::string& name, Index group)
      : gain_(list.add(name, 1, group, 1, 0)) {}

  template <class T>
  void forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y) const {
    const auto gain = gain_.in(values).array();
    y.resize(x.rows(), x.cols());
    const auto in = groups(x);
    auto out = groups(y);
    for (Index r = 0; r < in.rows(); ++r)
      out.row(r) = in.row(r).array() * inverse_rms(in.row(r)) * gain;
  }
  template <class T>
  void backward(const Values<T>& values, const Matrix<T>& x, const Matrix<T>& dy, Matrix<T>& dx,
                Values<T>& gradient) const {
    const auto gain = gain_.in(values).array();
    auto gain_gradient = gain_.in(gradient).array();
    gain_gradient.setZero();
    dx.resize(x.rows(), x.cols());
    const auto in = groups(x);
    const auto grad = groups(dy);
    auto out = groups(dx);
    for (Index r = 0; r < in.rows(); ++r) {
      const T inverse = inverse_rms(in.row(r));
      const auto normed = in.row(r).array() * inverse;
      const auto scaled = grad.row(r).array() * gain;
      gain_gradient += grad.row(r).array() * normed;
      const T along = (scaled * normed).mean();
      out.row(r) = (scaled - normed * along) * inverse;
    }
  }

 private:
  template <class T>
  Eigen::Map<const Matrix<T>> groups(const Matrix<T>& x) const {
    return {x.data(), x.size() / gain_.columns, gain_.columns};
  }
  template <class T>
  Eigen::Map<Matrix<T>> groups(Matrix<T>& x) const {
    return {x.data(), x.size() / gain_.columns, gain_.columns};
  }
  template <class Row>
  static typename Row::Scalar inverse_rms(const Row& row) {
    using T = typename Row::Scalar;
    return T(1) / std::sqrt(row.squaredNorm() / static_cast<T>(row.size()) + T(1e-6));
  }

  Parameter gain_;
};

/// silu(a) * b with silu(a) = a / (1 + exp(-a)).
template <class A, class B, class T>
void gate(const A& a, const B& b, Matrix<T>& y) {
  y = a.array() * a.array().logistic() * b.array();
}

/// The gradients of a and b from dy, into blocks or matrices of their extents.
template <class A, class B, class T, class GradA, class GradB>
void gate_backward(const A& a, const B& b, const Matrix<T>& dy, GradA&& da, GradB&& db) {
  const Matrix<T> open = a.array().logistic();
  db = dy.array() * a.array() * open.array();
  da = dy.array() * b.array() * open.array() * (T(1) + a.array() * (T(1) - open.array()));
}

}  // namespace char_lm
