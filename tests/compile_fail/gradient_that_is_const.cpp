// SPDX-License-Identifier: MIT
// A gradient is written to.
// EXPECT: mhla: gradients(dq, dk, dv, dmix) are written to, and one of them is const
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
    mhla::gradients(std::as_const(dq), mhla::skip, mhla::skip, mhla::skip) =
        attention.backward(q, q, q, mix, q);
#endif
  }
};
