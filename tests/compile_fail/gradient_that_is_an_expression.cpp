// SPDX-License-Identifier: MIT
// A lazy expression has no memory to write to.
// EXPECT: mhla: gradients(dq, dk, dv, dmix) takes tensors, maps, tokens_first of them, views, or
// mhla::skip
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
    mhla::gradients(mhla::tokens_first(dq), mhla::skip, mhla::skip, mhla::skip) =
        attention.backward(q, q, q, mix, q);
#ifndef MHLA_CONTROL
    mhla::gradients(dq * 2.f, mhla::skip, mhla::skip, mhla::skip) =
        attention.backward(q, q, q, mix, q);
#endif
  }
};
