// SPDX-License-Identifier: MIT
// Integers have no attention.
// EXPECT: mhla: q, k, v and dy must be tensors of float, double, another floating-point type
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Eigen::Tensor<int, 4, Eigen::RowMajor> q;
  Eigen::Tensor<int, 3, Eigen::RowMajor> mix;

  void use() {
    attention(q.cast<float>(), q.cast<float>(), q.cast<float>(), mix.cast<float>());
#ifndef MHLA_CONTROL
    attention(q, q, q, mix);
#endif
  }
};
