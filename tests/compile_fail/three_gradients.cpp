// SPDX-License-Identifier: MIT
// A gradient is left out by name.
// EXPECT: mhla: gradients(dq, dk, dv, dmix) takes four gradients
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Tensor4 dq;
  Tensor4 dk;
  Tensor4 dv;

  void use() {
    mhla::gradients(dq, dk, dv, mhla::skip) = attention.backward(q, q, q, mix, q);
#ifndef MHLA_CONTROL
    mhla::gradients(dq, dk, dv) = attention.backward(q, q, q, mix, q);
#endif
  }
};
