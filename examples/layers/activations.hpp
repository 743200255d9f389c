// SPDX-License-Identifier: MIT
// Functions of single elements: f(x), and f'(x) for the backward pass; and the gate made of one.
#pragma once

#include <cmath>

#include "parameters.hpp"

namespace layers {

/// x / (1 + exp(-x))
struct Silu {
  template <class T>
  static T value(T x) {
    return x / (T(1) + std::exp(-x));
  }
  template <class T>
  static T derivative(T x) {
    const T open = T(1) / (T(1) + std::exp(-x));
    return open * (T(1) + x * (T(1) - open));
  }
};

/// x Phi(x), Phi the normal distribution.
struct Gelu {
  template <class T>
  static T value(T x) {
    return x / T(2) * (T(1) + std::erf(x * T(0.70710678118654752)));
  }
  template <class T>
  static T derivative(T x) {
    return (T(1) + std::erf(x * T(0.70710678118654752))) / T(2) +
           x * std::exp(-x * x / T(2)) * T(0.39894228040143268);
  }
};

/// The same with tanh in place of erf: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
struct GeluTanh {
  template <class T>
  static T value(T x) {
    return x / T(2) * (T(1) + std::tanh(inner(x)));
  }
  template <class T>
  static T derivative(T x) {
    const T t = std::tanh(inner(x));
    return (T(1) + t) / T(2) +
           x / T(2) * (T(1) - t * t) * factor<T> * (T(1) + T(3 * 0.044715) * x * x);
  }

 private:
  template <class T>
  static constexpr T factor = T(0.79788456080286536);
  template <class T>
  static T inner(T x) {
    return factor<T> * (x + T(0.044715) * x * x * x);
  }
};

/// y = f(x)
template <class F, class X, class T>
void activate(const X& x, Matrix<T>& y) {
  y = x.unaryExpr([](T element) { return F::value(element); });
}
/// dx = f'(x) o dy
template <class F, class X, class T, class GradX>
void activate_backward(const X& x, const Matrix<T>& dy, GradX&& dx) {
  dx = x.binaryExpr(dy, [](T element, T d) { return F::derivative(element) * d; });
}

/// y = silu(a) o b
template <class A, class B, class T>
void gate(const A& a, const B& b, Matrix<T>& y) {
  y = a.array() * a.array().logistic() * b.array();
}
/// Into blocks or matrices of the extents of a and b.
template <class A, class B, class T, class GradA, class GradB>
void gate_backward(const A& a, const B& b, const Matrix<T>& dy, GradA&& da, GradB&& db) {
  const Matrix<T> open = a.array().logistic();
  db = dy.array() * a.array() * open.array();
  da = dy.array() * b.array() * open.array() * (T(1) + a.array() * (T(1) - open.array()));
}

}  // namespace layers
