// SPDX-License-Identifier: MIT
// A result of rank 4 in a tensor of rank 3.
// EXPECT: mhla: the result of attention(q, k, v, mix) has rank 4:
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Tensor4 y;
  Tensor3 tokens;

  void use() {
    y.device(Eigen::DefaultDevice()) = attention(q, q, q, mix);
#ifndef MHLA_CONTROL
    tokens.device(Eigen::DefaultDevice()) = attention(q, q, q, mix);
#endif
  }
};
