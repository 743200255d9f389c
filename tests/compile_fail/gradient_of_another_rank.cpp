// SPDX-License-Identifier: MIT
// dmix where dv belongs.
// EXPECT: mhla: dq, dk and dv must have rank 4, and dmix rank 3,
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Tensor3 dmix;

  void use() {
    mhla::gradients(mhla::skip, mhla::skip, mhla::skip, dmix) = attention.backward(q, q, q, mix, q);
#ifndef MHLA_CONTROL
    mhla::gradients(mhla::skip, mhla::skip, dmix, mhla::skip) = attention.backward(q, q, q, mix, q);
#endif
  }
};
