// SPDX-License-Identifier: MIT
// In a ColMajor tensor the axes are reversed: this is never meant.
// EXPECT: mhla: q, k, v, mix and dy must have one layout, RowMajor or ColMajor
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Eigen::Tensor<float, 4, Eigen::ColMajor> v;

  void use() {
    attention(q, q, v.swap_layout(), mix);
#ifndef MHLA_CONTROL
    attention(q, q, v, mix);
#endif
  }
};
