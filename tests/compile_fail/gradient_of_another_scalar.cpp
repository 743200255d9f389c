// SPDX-License-Identifier: MIT
// Nothing is converted in silence.
// EXPECT: mhla: gradients(dq, dk, dv, dmix) must have the scalar types of q, k, v and mix
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Tensor3 dmix;
  Eigen::Tensor<double, 3, Eigen::RowMajor> wide;

  void use() {
    mhla::gradients(mhla::skip, mhla::skip, mhla::skip, dmix) = attention.backward(q, q, q, mix, q);
#ifndef MHLA_CONTROL
    mhla::gradients(mhla::skip, mhla::skip, mhla::skip, wide) = attention.backward(q, q, q, mix, q);
#endif
  }
};
