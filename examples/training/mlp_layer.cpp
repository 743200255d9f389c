// SPDX-License-Identifier: MIT
#include "mlp_layer.hpp"

namespace training {

void MlpLayer::forward(const Values& values, Matrix& x, MlpActivations& a) const {
  Matrix added;
  a.input = x;
  norm_.forward(values, x, a.normed);
  mlp_.forward(values, a.normed, added, a.inner);
  x += added;
}

void MlpLayer::backward(const Values& values, const MlpActivations& a, Matrix& dx,
                        Values& gradient) const {
  Matrix d_normed, d_input;
  mlp_.backward(values, a.inner, dx, d_normed, gradient);
  norm_.backward(values, a.input, d_normed, d_input, gradient);
  dx += d_input;
}

}  // namespace training
