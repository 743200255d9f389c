// SPDX-License-Identifier: MIT
// The feature maps of the released language model, of q or of k:
//
//   relu                 max(x, 0)
//   t2r                  max(W x, 0)
//   elu                  x + 1 where x > 0, otherwise e^x
//   identity             x
//   elementwise_product  (W1 x + b1) o (W2 x + b2)
//   hedgehog             softmax([2z, -2z]), z = W x + b
//   dpfp                 e o roll(e, 1), ..., e o roll(e, 4), e = [max(x, 0), -max(x, 0)]
//
// x are the key_dim numbers of a head; W, shared by all heads, is [key_dim, key_dim].
//
// The released rotation turns the first key_dim features, which for hedgehog and dpfp are not all
// of them. So features are rotated here, except those of relu and t2r, which attention itself maps
// and rotates while it reads.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "../layers/linear.hpp"
#include "config.hpp"

namespace released {

using layers::Matrix;
using layers::Values;

enum class FeatureMap { relu, t2r, elu, identity, elementwise_product, hedgehog, dpfp };

inline FeatureMap feature_map_of(const Config& config) {
  const std::string_view names[] = {"relu",     "t2r", "elu", "identity", "elementwise_product",
                                    "hedgehog", "dpfp"};
  config.require("feature_map",
                 {"relu", "t2r", "elu", "identity", "elementwise_product", "hedgehog", "dpfp"});
  if (!config.has("feature_map")) return FeatureMap::relu;
  int at = 0;
  while (config.word("feature_map") != names[at]) ++at;
  return static_cast<FeatureMap>(at);
}
/// Whether attention itself applies Relu and rotates.
inline bool is_relu_in_attention(FeatureMap map) {
  return map == FeatureMap::relu || map == FeatureMap::t2r;
}
/// The number of features of a head.
inline Index feature_count(FeatureMap map, Index key_dim) {
  if (map == FeatureMap::hedgehog) return 2 * key_dim;
  return map == FeatureMap::dpfp ? 8 * key_dim : key_dim;
}

/// Where a matrix of tokens lies in its sequences.
struct Positions {
  Index tokens;     ///< of a sequence, in the matrix
  Index first = 0;  ///< position of the first of them
};

template <class T>
class FeatureLayer {
 public:
  /// `name`: feature_map_q or feature_map_k of a layer.
  FeatureLayer(layers::ParameterList& list, const std::string& name, FeatureMap map, Index heads,
               Index key_dim, double theta)
      : map_(map), heads_(heads), key_dim_(key_dim), theta_(theta) {
    const auto linear = [&](const char* layer, layers::Bias bias) {
      return layers::Linear(list, name + layer, key_dim, key_dim, bias);
    };
    if (map == FeatureMap::t2r) linear_ = linear(".layer", layers::Bias::none);
    if (map == FeatureMap::hedgehog) linear_ = linear(".layer", layers::Bias::one);
    if (map == FeatureMap::elementwise_product) {
      linear_ = linear(".layer1", layers::Bias::one);
      second_ = linear(".layer2", layers::Bias::one);
    }
  }

  /// x [tokens, heads * key_dim] to y [tokens, heads * features], as attention takes them.
  /// `at_kink` is called with the arguments of Relu.
  template <class AtKink>
  void forward(const Values<T>& values, const Matrix<T>& x, const Positions& at,
               const AtKink& at_kink, Matrix<T>& y) {
    x_ = by_head(x);
    linear(values);
    if (is_relu_in_attention(map_)) {
      at_kink(z_);
      y = by_token(z_);
      return;
    }
    if (map_ == FeatureMap::dpfp) at_kink(z_);
    features_.resize(z_.rows(), feature_count(map_, key_dim_));
    for (Index r = 0; r < z_.rows(); ++r) map_row(r);
    Matrix<T> rotated = features_;
    rotate(rotated, at, 1);
    y = by_token(rotated);
  }

  void backward(const Values<T>& values, const Matrix<T>& dy, const Positions& at, Matrix<T>& dx,
                Values<T>& gradient) const {
    Matrix<T> d_features = by_head(dy), dz = d_features, d_second, d_part, d_x;
    if (!is_relu_in_attention(map_)) {
      rotate(d_features, at, -1);
      dz.resize(z_.rows(), key_dim_);
      for (Index r = 0; r < z_.rows(); ++r) map_row_backward(r, d_features, dz);
    }
    d_x = dz;
    if (map_ == FeatureMap::elementwise_product) {
      d_second = dz.cwiseProduct(z_);
      dz = dz.cwiseProduct(second_z_);
      second_->backward(values, x_, d_second, d_part, gradient);
    }
    if (linear_) linear_->backward(values, x_, dz, d_x, gradient);
    if (second_) d_x += d_part;
    dx = by_token(d_x);
  }

 private:
  Matrix<T> by_head(const Matrix<T>& x) const {
    return Eigen::Map<const Matrix<T>>(x.data(), x.rows() * heads_, x.cols() / heads_);
  }
  Matrix<T> by_token(const Matrix<T>& x) const {
    return Eigen::Map<const Matrix<T>>(x.data(), x.rows() / heads_, x.cols() * heads_);
  }
  void linear(const Values<T>& values) {
    z_ = x_;
    if (linear_) linear_->forward(values, x_, z_);
    if (second_) second_->forward(values, x_, second_z_);
  }
  /// Turns the pairs (j, j + key_dim / 2) of the first key_dim features by position theta^(-2j /
  /// key_dim). `direction` is 1, or -1 for the inverse, which is the adjoint.
  void rotate(Matrix<T>& features, const Positions& at, double direction) const {
    const Index half = key_dim_ / 2;
    for (Index j = 0; j < half; ++j) {
      const double frequency =
          direction * std::pow(theta_, -2 * static_cast<double>(j) / static_cast<double>(key_dim_));
      for (Index r = 0; r < features.rows(); ++r) {
        const double angle = frequency * static_cast<double>(at.first + r / heads_ % at.tokens);
        const T c = static_cast<T>(std::cos(angle)), s = static_cast<T>(std::sin(angle));
        const T a = features(r, j), b = features(r, half + j);
        features(r, j) = a * c - b * s;
        features(r, half + j) = a * s + b * c;
      }
    }
  }

  void map_row(Index r) {
    const auto z = z_.row(r).array();
    auto y = features_.row(r).array();
    if (map_ == FeatureMap::elu) {
      y = (z > T(0)).select(z + T(1), z.exp());
    } else if (map_ == FeatureMap::elementwise_product) {
      y = z * second_z_.row(r).array();
    } else if (map_ == FeatureMap::hedgehog) {
      const T largest = z.abs().maxCoeff();
      y.head(key_dim_) = (T(2) * (z - largest)).exp();
      y.tail(key_dim_) = (T(-2) * (z + largest)).exp();
      y /= y.sum();
    } else if (map_ == FeatureMap::dpfp) {
      const Row e = signed_pair(r);
      for (Index c = 0; c < y.size(); ++c) y(c) = e(c % e.size()) * e(rolled(c, e.size()));
    } else {
      y = z;
    }
  }
  void map_row_backward(Index r, const Matrix<T>& d_features, Matrix<T>& d_z) const {
    const auto z = z_.row(r).array();
    const auto y = features_.row(r).array(), dy = d_features.row(r).array();
    auto dz = d_z.row(r).array();
    if (map_ == FeatureMap::elu) {
      dz = (z > T(0)).select(dy, dy * y);
    } else if (map_ == FeatureMap::hedgehog) {
      const Row d = y * (dy - (y * dy).sum());
      dz = T(2) * (d.head(key_dim_) - d.tail(key_dim_));
    } else if (map_ == FeatureMap::dpfp) {
      const Row e = signed_pair(r);
      Row de = Row::Zero(e.size());
      for (Index c = 0; c < y.size(); ++c) {
        de(c % e.size()) += dy(c) * e(rolled(c, e.size()));
        de(rolled(c, e.size())) += dy(c) * e(c % e.size());
      }
      dz = (z > T(0)).select(de.head(key_dim_) - de.tail(key_dim_), T(0));
    } else {
      dz = dy;
    }
  }
  using Row = Eigen::Array<T, 1, Eigen::Dynamic>;
  /// [max(z, 0), -max(z, 0)], as released; the paper on DPFP has max(-z, 0) in the second half.
  Row signed_pair(Index r) const {
    Row e(2 * key_dim_);
    e << z_.row(r).array().max(T(0)), -z_.row(r).array().max(T(0));
    return e;
  }
  /// The second factor of dpfp's feature c.
  static Index rolled(Index c, Index size) { return (c % size + size - (c / size + 1)) % size; }

  FeatureMap map_;
  Index heads_;
  Index key_dim_;
  double theta_;
  std::optional<layers::Linear> linear_, second_;
  Matrix<T> x_, z_, second_z_, features_;
};

}  // namespace released
