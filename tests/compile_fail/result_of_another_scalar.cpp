// SPDX-License-Identifier: MIT
// Nothing is converted in silence.
// EXPECT: mhla: the result of attention(q, k, v, mix) has the scalar type of q
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Eigen::Tensor<double, 4, Eigen::RowMajor> y;

  void use() {
    y = attention(q, q, q, mix).cast<double>();
#ifndef MHLA_CONTROL
    y = attention(q, q, q, mix);
#endif
  }
};
