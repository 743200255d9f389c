// SPDX-License-Identifier: MIT
// A linear map of every token. As in all layers: what forward computes, backward differentiates;
// from the gradient of its result it makes that of its input and, in `gradient`, that of its own
// parameters.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "parameters.hpp"

namespace layers {

enum class Bias { none, one };

/// y = x W^T + b, W [out, in].
class Linear {
 public:
  Linear(ParameterList& list, const std::string& name, Index in, Index out, Bias bias = Bias::none,
         double gain = 1)
      : Linear(list, name, std::vector<Index>{out, in}, bias, gain) {}
  /// W of a convolution whose windows are the rows of x: [out, in channels, window...].
  Linear(ParameterList& list, const std::string& name, std::vector<Index> shape, Bias bias,
         double gain = 1)
      : has_bias_(bias == Bias::one) {
    Index in = 1;
    for (std::size_t axis = 1; axis < shape.size(); ++axis) in *= shape[axis];
    weight_ =
        list.add(name + ".weight", std::move(shape), 0, gain / std::sqrt(static_cast<double>(in)));
    if (has_bias_) bias_ = list.add(name + ".bias", {weight_.rows()}, 0, 0);
  }

  template <class T>
  void forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y) const {
    y.noalias() = x * weight_.in(values).transpose();
    if (has_bias_) y.array().rowwise() += bias_.row(values);
  }
  /// y += x W^T + b
  template <class T>
  void add_forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y) const {
    y.noalias() += x * weight_.in(values).transpose();
    if (has_bias_) y.array().rowwise() += bias_.row(values);
  }
  template <class T>
  void backward(const Values<T>& values, const Matrix<T>& x, const Matrix<T>& dy, Matrix<T>& dx,
                Values<T>& gradient) const {
    weight_.in(gradient).noalias() = dy.transpose() * x;
    if (has_bias_) bias_.row(gradient) = dy.array().colwise().sum();
    dx.noalias() = dy * weight_.in(values);
  }

 private:
  bool has_bias_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace layers
