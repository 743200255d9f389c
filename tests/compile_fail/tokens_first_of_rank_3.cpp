// SPDX-License-Identifier: MIT
// There are no heads to put before the tokens.
// EXPECT: mhla: tokens_first takes a tensor of rank 4,
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
    attention(mhla::tokens_first(q), q, q, mix);
#ifndef MHLA_CONTROL
    attention(mhla::tokens_first(tokens), q, q, mix);
#endif
  }
};
