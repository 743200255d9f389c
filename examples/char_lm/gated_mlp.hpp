// SPDX-License-Identifier: MIT
// The MLP layer: x + (silu(n A) * (n B)) W with n = RMSNorm(x).
#pragma once

#include <string>

#include "dense_layers.hpp"
#include "parameters.hpp"

namespace char_lm {

template <class T>
struct MlpActivations {
  Matrix<T> input;
  Matrix<T> normed;
  Matrix<T> expanded;  // [tokens, 2 hidden]: n A, n B
  Matrix<T> gated;
};

class GatedMlp {
 public:
  GatedMlp(ParameterList& list, const std::string& name, Index width, Index hidden, double out_gain)
      : hidden_(hidden),
        norm_(list, name + ".norm", width),
        expand_(list, name + ".expand", width, 2 * hidden),
        contract_(list, name + ".contract", hidden, width, out_gain) {}

  /// Adds the layer's result to x.
  template <class T>
  void forward(const Values<T>& values, Matrix<T>& x, MlpActivations<T>& a) const {
    a.input = x;
    norm_.forward(values, x, a.normed);
    expand_.forward(values, a.normed, a.expanded);
    gate(a.expanded.leftCols(hidden_), a.expanded.rightCols(hidden_), a.gated);
    contract_.add_forward(values, a.gated, x);
  }

  /// dx is the gradient of the sum on entry, of the layer's input afterwards.
  template <class T>
  void backward(const Values<T>& values, const MlpActivations<T>& a, Matrix<T>& dx,
                Values<T>& gradient) const {
    Matrix<T> d_gated, d_expanded(a.expanded.rows(), a.expanded.cols()), d_normed, d_input;
    contract_.backward(values, a.gated, dx, d_gated, gradient);
    gate_backward(a.expanded.leftCols(hidden_), a.expanded.rightCols(hidden_), d_gated,
                  d_expanded.leftCols(hidden_), d_expanded.rightCols(hidden_));
    expand_.backward(values, a.normed, d_expanded, d_normed, gradient);
    norm_.backward(values, a.input, d_normed, d_input, gradient);
    dx += d_input;
  }

 private:
  Index hidden_;
  RmsNorm norm_;
  Linear expand_;
  Linear contract_;
};

}  // namespace char_lm
