// SPDX-License-Identifier: MIT
// Layers steered by a condition (adaLN): each batch item has a row of shifts, scales and gates that
// hold for all of its tokens.
#pragma once

#include "parameters.hpp"

namespace layers {

/// The rows of batch item b, of `batch`, in a matrix of tokens.
template <class M>
auto rows_of(M& tokens, Index b, Index batch) {
  const Index count = tokens.rows() / batch;
  return tokens.middleRows(b * count, count).array();
}

/// y = x o (1 + scale) + shift; scale and shift [batch, channels].
template <class T, class Shift, class Scale>
void modulate(const Matrix<T>& x, const Shift& shift, const Scale& scale, Matrix<T>& y) {
  y.resize(x.rows(), x.cols());
  for (Index b = 0; b < shift.rows(); ++b)
    rows_of(y, b, shift.rows()) =
        (rows_of(x, b, shift.rows()).rowwise() * (scale.row(b).array() + T(1))).rowwise() +
        shift.row(b).array();
}
template <class T, class Scale, class GradShift, class GradScale>
void modulate_backward(const Matrix<T>& x, const Scale& scale, const Matrix<T>& dy, Matrix<T>& dx,
                       GradShift&& d_shift, GradScale&& d_scale) {
  dx.resize(x.rows(), x.cols());
  for (Index b = 0; b < scale.rows(); ++b) {
    const auto d = rows_of(dy, b, scale.rows());
    d_shift.row(b) = d.colwise().sum();
    d_scale.row(b) = (d * rows_of(x, b, scale.rows())).colwise().sum();
    rows_of(dx, b, scale.rows()) = d.rowwise() * (scale.row(b).array() + T(1));
  }
}

/// sum += gate o x; gate [batch, channels].
template <class T, class Gate>
void add_gated(const Matrix<T>& x, const Gate& gate, Matrix<T>& sum) {
  for (Index b = 0; b < gate.rows(); ++b)
    rows_of(sum, b, gate.rows()) += rows_of(x, b, gate.rows()).rowwise() * gate.row(b).array();
}
template <class T, class Gate, class GradGate>
void add_gated_backward(const Matrix<T>& x, const Gate& gate, const Matrix<T>& d_sum, Matrix<T>& dx,
                        GradGate&& d_gate) {
  dx.resize(x.rows(), x.cols());
  for (Index b = 0; b < gate.rows(); ++b) {
    const auto d = rows_of(d_sum, b, gate.rows());
    d_gate.row(b) = (d * rows_of(x, b, gate.rows())).colwise().sum();
    rows_of(dx, b, gate.rows()) = d.rowwise() * gate.row(b).array();
  }
}

}  // namespace layers
