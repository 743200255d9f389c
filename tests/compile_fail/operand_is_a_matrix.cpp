// SPDX-License-Identifier: MIT
// Eigen's matrices have no batch, heads and tokens.
// EXPECT: mhla: attention(q, k, v, mix) takes tensors: Eigen::Tensor, Eigen::TensorMap
// FIRST: mhla: attention(q, k, v, mix) takes tensors
// EXPECT: mhla: attention.backward(q, k, v, mix, dy) takes tensors: Eigen::Tensor
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Eigen::MatrixXf mix;

  void use() {
    attention(q, q, q, Tensor3());
#ifndef MHLA_CONTROL
    const auto y = attention(q, q, q, mix);
    static_cast<void>(y);
    attention.backward(q, q, q, mix, q);
#endif
  }
};
