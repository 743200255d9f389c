// SPDX-License-Identifier: MIT
// Axes are never reversed in silence.
// EXPECT: mhla: the result of attention(q, k, v, mix) has the layout of its operands
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Eigen::Tensor<float, 4, Eigen::ColMajor> y;

  void use() {
    y.swap_layout().device(Eigen::DefaultDevice()) = attention(q, q, q, mix);
#ifndef MHLA_CONTROL
    y.device(Eigen::DefaultDevice()) = attention(q, q, q, mix);
#endif
  }
};
