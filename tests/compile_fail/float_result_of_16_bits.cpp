// SPDX-License-Identifier: MIT
// Sums are float, their result is not.
// EXPECT: mhla: the result of attention(q, k, v, mix) has the scalar type of q
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

struct Call {
  Attention attention;
  Eigen::Tensor<Eigen::bfloat16, 4, Eigen::RowMajor> q;
  Eigen::Tensor<float, 3, Eigen::RowMajor> mix;
  Eigen::Tensor<float, 4, Eigen::RowMajor> y;

  void use() {
    y = attention(q, q, q, mix).cast<float>();
#ifndef MHLA_CONTROL
    y = attention(q, q, q, mix);
#endif
  }
};
