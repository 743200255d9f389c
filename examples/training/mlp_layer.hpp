// SPDX-License-Identifier: MIT
// The MLP layer: x + swiglu(RMSNorm(x)).
#pragma once

#include <string>

#include "../layers/mlp.hpp"
#include "../layers/norms.hpp"

namespace training {

using layers::Index;
using layers::Matrix;
using layers::ParameterList;
using layers::Values;

template <class T>
struct MlpActivations {
  Matrix<T> input;
  Matrix<T> normed;
  layers::GatedMlpActivations<T> inner;
};

class MlpLayer {
 public:
  MlpLayer(ParameterList& list, const std::string& name, Index width, Index hidden, double out_gain)
      : norm_(list, name + ".norm", width), mlp_(list, name, width, hidden, out_gain) {}

  /// Adds the layer's result to x.
  template <class T>
  void forward(const Values<T>& values, Matrix<T>& x, MlpActivations<T>& a) const {
    Matrix<T> added;
    a.input = x;
    norm_.forward(values, x, a.normed);
    mlp_.forward(values, a.normed, added, a.inner);
    x += added;
  }

  /// dx is the gradient of the sum on entry, of the layer's input afterwards.
  template <class T>
  void backward(const Values<T>& values, const MlpActivations<T>& a, Matrix<T>& dx,
                Values<T>& gradient) const {
    Matrix<T> d_normed, d_input;
    mlp_.backward(values, a.inner, dx, d_normed, gradient);
    norm_.backward(values, a.input, d_normed, d_input, gradient);
    dx += d_input;
  }

 private:
  layers::RmsNorm norm_;
  layers::GatedMlp mlp_;
};

}  // namespace training
