// SPDX-License-Identifier: MIT
// One sequence alone is still a batch of one.
// EXPECT: mhla: q, k, v and dy must have rank 4:
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Tensor3 tokens;

  void use() {
    attention(q, q, q, mix);
#ifndef MHLA_CONTROL
    attention(tokens, q, q, mix);
#endif
  }
};
