// SPDX-License-Identifier: MIT
// mix has the type of the sums it multiplies.
// EXPECT: mhla: mix must have the type that q is accumulated in
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Eigen::Tensor<double, 3, Eigen::RowMajor> mix;

  void use() {
    attention(q, q, q, mix.cast<float>());
#ifndef MHLA_CONTROL
    attention(q, q, q, mix);
#endif
  }
};
