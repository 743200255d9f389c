// SPDX-License-Identifier: MIT
// The two kinds of 16 bits are as different as any other scalars.
// EXPECT: mhla: q, k, v and dy must have one scalar type
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

struct Call {
  Attention attention;
  Eigen::Tensor<Eigen::bfloat16, 4, Eigen::RowMajor> q;
  Eigen::Tensor<Eigen::half, 4, Eigen::RowMajor> v;
  Eigen::Tensor<float, 3, Eigen::RowMajor> mix;

  void use() {
    attention(q, q, v.cast<Eigen::bfloat16>(), mix);
#ifndef MHLA_CONTROL
    attention(q, q, v, mix);
#endif
  }
};
