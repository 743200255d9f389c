// SPDX-License-Identifier: MIT
// A ColMajor matrix would be transposed.
// EXPECT: mhla: q, k, v, mix and dy must have one layout, RowMajor or ColMajor
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Eigen::Tensor<float, 2, Eigen::ColMajor> mix;

  void use() {
    attention(q, q, q, mix.swap_layout());
#ifndef MHLA_CONTROL
    attention(q, q, q, mix);
#endif
  }
};
