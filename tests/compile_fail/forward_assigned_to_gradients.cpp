// SPDX-License-Identifier: MIT
// Gradients take a backward pass.
// EXPECT: mhla: gradients(dq, dk, dv, dmix) take attention.backward(q, k, v, mix, dy)
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Tensor4 dq;

  void use() {
    mhla::gradients(dq, mhla::skip, mhla::skip, mhla::skip) = attention.backward(q, q, q, mix, q);
#ifndef MHLA_CONTROL
    mhla::gradients(dq, mhla::skip, mhla::skip, mhla::skip) = attention(q, q, q, mix);
#endif
  }
};
