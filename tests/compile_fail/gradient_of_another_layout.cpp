// SPDX-License-Identifier: MIT
// Axes are never reversed in silence.
// EXPECT: mhla: gradients(dq, dk, dv, dmix) must have the layout of q, k, v and mix
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Tensor4 dq;
  Eigen::Tensor<float, 4, Eigen::ColMajor> reversed;

  void use() {
    mhla::gradients(dq, mhla::skip, mhla::skip, mhla::skip) = attention.backward(q, q, q, mix, q);
#ifndef MHLA_CONTROL
    mhla::gradients(reversed, mhla::skip, mhla::skip, mhla::skip) =
        attention.backward(q, q, q, mix, q);
#endif
  }
};
