// SPDX-License-Identifier: MIT
// The mixing matrix of 16-bit tensors is of float, as the sums it multiplies.
// EXPECT: mhla: mix must have the type that q is accumulated in: float for float, Eigen::bfloat16
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

struct Call {
  Attention attention;
  Eigen::Tensor<Eigen::bfloat16, 4, Eigen::RowMajor> q;
  Eigen::Tensor<Eigen::bfloat16, 3, Eigen::RowMajor> mix;

  void use() {
    attention(q, q, q, mix.cast<float>());
#ifndef MHLA_CONTROL
    attention(q, q, q, mix);
#endif
  }
};
