// SPDX-License-Identifier: MIT
// The layers between those that mix tokens.
#pragma once

#include <array>
#include <string>

#include "activations.hpp"
#include "linear.hpp"
#include "parameters.hpp"

namespace layers {

template <class T>
struct MlpActivations {
  Matrix<T> input;
  Matrix<T> expanded;
  Matrix<T> activated;
};

/// y = f(x W1^T + b1) W2^T + b2. `names` are those of the two linear layers.
template <class F>
class Mlp {
 public:
  Mlp(ParameterList& list, const std::array<std::string, 2>& names, Index in, Index hidden,
      Index out, double out_gain = 1)
      : expand_(list, names[0], in, hidden, Bias::one),
        contract_(list, names[1], hidden, out, Bias::one, out_gain) {}

  template <class T>
  void forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y,
               MlpActivations<T>& a) const {
    a.input = x;
    expand_.forward(values, x, a.expanded);
    activate<F>(a.expanded, a.activated);
    contract_.forward(values, a.activated, y);
  }
  template <class T>
  void backward(const Values<T>& values, const MlpActivations<T>& a, const Matrix<T>& dy,
                Matrix<T>& dx, Values<T>& gradient) const {
    Matrix<T> d_activated, d_expanded;
    contract_.backward(values, a.activated, dy, d_activated, gradient);
    activate_backward<F>(a.expanded, d_activated, d_expanded);
    expand_.backward(values, a.input, d_expanded, dx, gradient);
  }

 private:
  Linear expand_;
  Linear contract_;
};

template <class T>
struct GatedMlpActivations {
  Matrix<T> input;
  Matrix<T> gate;
  Matrix<T> up;
  Matrix<T> gated;
};

/// SwiGLU: y = (silu(x A^T) o x B^T) W^T.
class GatedMlp {
 public:
  GatedMlp(ParameterList& list, const std::string& name, Index width, Index hidden,
           double out_gain = 1)
      : gate_(list, name + ".gate_proj", width, hidden),
        up_(list, name + ".up_proj", width, hidden),
        down_(list, name + ".down_proj", hidden, width, Bias::none, out_gain) {}

  template <class T>
  void forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y,
               GatedMlpActivations<T>& a) const {
    a.input = x;
    gate_.forward(values, x, a.gate);
    up_.forward(values, x, a.up);
    gate(a.gate, a.up, a.gated);
    down_.forward(values, a.gated, y);
  }
  template <class T>
  void backward(const Values<T>& values, const GatedMlpActivations<T>& a, const Matrix<T>& dy,
                Matrix<T>& dx, Values<T>& gradient) const {
    Matrix<T> d_gated, d_gate, d_up, d_input;
    down_.backward(values, a.gated, dy, d_gated, gradient);
    gate_backward(a.gate, a.up, d_gated, d_gate, d_up);
    gate_.backward(values, a.input, d_gate, dx, gradient);
    up_.backward(values, a.input, d_up, d_input, gradient);
    dx += d_input;
  }

 private:
  Linear gate_;
  Linear up_;
  Linear down_;
};

}  // namespace layers
