// SPDX-License-Identifier: MIT
// dy has the shape of y.
// EXPECT: mhla: q, k, v and dy must have rank 4:
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Tensor3 dy;

  void use() {
    attention.backward(q, q, q, mix, q);
#ifndef MHLA_CONTROL
    attention.backward(q, q, q, mix, dy);
#endif
  }
};
