// SPDX-License-Identifier: MIT
// The gradient of the mixing matrix is of float, as the matrix is.
// EXPECT: mhla: gradients(dq, dk, dv, dmix) must have the scalar types of q, k, v and mix
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

struct Call {
  Attention attention;
  Eigen::Tensor<Eigen::half, 4, Eigen::RowMajor> q, dq;
  Eigen::Tensor<float, 3, Eigen::RowMajor> mix, dmix;
  Eigen::Tensor<Eigen::half, 3, Eigen::RowMajor> narrow;

  void use() {
    mhla::gradients(dq, mhla::skip, mhla::skip, dmix) = attention.backward(q, q, q, mix, q);
#ifndef MHLA_CONTROL
    mhla::gradients(dq, mhla::skip, mhla::skip, narrow) = attention.backward(q, q, q, mix, q);
#endif
  }
};
