// SPDX-License-Identifier: MIT
// Nothing is converted in silence.
// EXPECT: mhla: q, k, v and dy must have one scalar type
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Eigen::Tensor<double, 4, Eigen::RowMajor> dy;

  void use() {
    attention.backward(q, q, q, mix, dy.cast<float>());
#ifndef MHLA_CONTROL
    attention.backward(q, q, q, mix, dy);
#endif
  }
};
