// SPDX-License-Identifier: MIT
// Normalization of tokens, or of groups of their channels.
#pragma once

#include <cmath>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "parameters.hpp"

namespace layers {

/// y = x / sqrt(mean(x^2) + epsilon) o w, over groups of channels: all of a token, or a head's.
class RmsNorm {
 public:
  RmsNorm(ParameterList& list, const std::string& name, Index group, double epsilon = 1e-6)
      : weight_(list.add(name + ".weight", {group}, 1, 0)), epsilon_(epsilon) {}

  template <class T>
  void forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y) const {
    const auto weight = weight_.row(values);
    y.resize(x.rows(), x.cols());
    const auto in = groups(x);
    auto out = groups(y);
    for (Index r = 0; r < in.rows(); ++r)
      out.row(r) = in.row(r).array() * inverse_rms(in.row(r)) * weight;
  }
  template <class T>
  void backward(const Values<T>& values, const Matrix<T>& x, const Matrix<T>& dy, Matrix<T>& dx,
                Values<T>& gradient) const {
    const auto weight = weight_.row(values);
    auto d_weight = weight_.row(gradient);
    d_weight.setZero();
    dx.resize(x.rows(), x.cols());
    const auto in = groups(x);
    const auto d_out = groups(dy);
    auto d_in = groups(dx);
    for (Index r = 0; r < in.rows(); ++r) {
      const T inverse = inverse_rms(in.row(r));
      const auto normed = in.row(r).array() * inverse;
      const auto scaled = d_out.row(r).array() * weight;
      d_weight += d_out.row(r).array() * normed;
      const T along = (scaled * normed).mean();
      d_in.row(r) = (scaled - normed * along) * inverse;
    }
  }

 private:
  template <class M>
  auto groups(M& x) const {
    using T = typename M::Scalar;
    using Map = std::conditional_t<std::is_const_v<M>, const Matrix<T>, Matrix<T>>;
    return Eigen::Map<Map>(x.data(), x.size() / weight_.size(), weight_.size());
  }
  template <class Row>
  typename Row::Scalar inverse_rms(const Row& row) const {
    using T = typename Row::Scalar;
    return T(1) / std::sqrt(row.squaredNorm() / static_cast<T>(row.size()) + T(epsilon_));
  }

  Parameter weight_;
  double epsilon_;
};

enum class Affine { no, yes };

/// y = (x - mean) / sqrt(var + epsilon) o w + b over a token's channels; var divides by their
/// number. Without `affine`, w = 1 and b = 0.
class LayerNorm {
 public:
  LayerNorm(ParameterList& list, const std::string& name, Index width, double epsilon,
            Affine affine = Affine::yes)
      : epsilon_(epsilon), is_affine_(affine == Affine::yes) {
    if (!is_affine_) return;
    weight_ = list.add(name + ".weight", {width}, 1, 0);
    bias_ = list.add(name + ".bias", {width}, 0, 0);
  }

  template <class T>
  void forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y) const {
    y.resize(x.rows(), x.cols());
    for (Index r = 0; r < x.rows(); ++r) {
      y.row(r) = x.row(r).array() - x.row(r).mean();
      y.row(r) *= inverse_deviation(y.row(r));
    }
    if (!is_affine_) return;
    y.array().rowwise() *= weight_.row(values);
    y.array().rowwise() += bias_.row(values);
  }
  template <class T>
  void backward(const Values<T>& values, const Matrix<T>& x, const Matrix<T>& dy, Matrix<T>& dx,
                Values<T>& gradient) const {
    using Row = Eigen::Array<T, 1, Eigen::Dynamic>;
    dx.resize(x.rows(), x.cols());
    if (is_affine_) {
      weight_.row(gradient).setZero();
      bias_.row(gradient) = dy.array().colwise().sum();
    }
    for (Index r = 0; r < x.rows(); ++r) {
      Row normed = x.row(r).array() - x.row(r).mean();
      const T inverse = inverse_deviation(normed.matrix());
      normed *= inverse;
      Row scaled = dy.row(r).array();
      if (is_affine_) {
        weight_.row(gradient) += scaled * normed;
        scaled *= weight_.row(values);
      }
      const T mean = scaled.mean();
      const T along = (scaled * normed).mean();
      dx.row(r) = (scaled - mean - normed * along) * inverse;
    }
  }

 private:
  /// Of a row whose mean is 0.
  template <class Row>
  typename Row::Scalar inverse_deviation(const Row& row) const {
    using T = typename Row::Scalar;
    return T(1) / std::sqrt(row.squaredNorm() / static_cast<T>(row.size()) + T(epsilon_));
  }

  double epsilon_;
  bool is_affine_;
  Parameter weight_;
  Parameter bias_;
};

/// In place of a norm that a model is built without.
struct Identity {
  template <class T>
  void forward(const Values<T>& /*values*/, const Matrix<T>& x, Matrix<T>& y) const {
    y = x;
  }
  template <class T>
  void backward(const Values<T>& /*values*/, const Matrix<T>& /*x*/, const Matrix<T>& dy,
                Matrix<T>& dx, Values<T>& /*gradient*/) const {
    dx = dy;
  }
};

/// Any of these, chosen when a model is built.
class Norm {
 public:
  Norm() = default;
  Norm(LayerNorm norm) : kind_(std::move(norm)) {}
  Norm(RmsNorm norm) : kind_(std::move(norm)) {}

  template <class T>
  void forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y) const {
    std::visit([&](const auto& norm) { norm.forward(values, x, y); }, kind_);
  }
  template <class T>
  void backward(const Values<T>& values, const Matrix<T>& x, const Matrix<T>& dy, Matrix<T>& dx,
                Values<T>& gradient) const {
    std::visit([&](const auto& norm) { norm.backward(values, x, dy, dx, gradient); }, kind_);
  }

 private:
  std::variant<Identity, LayerNorm, RmsNorm> kind_;
};

}  // namespace layers
