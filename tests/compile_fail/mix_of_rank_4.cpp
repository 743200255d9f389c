// SPDX-License-Identifier: MIT
// mix is shared by the batch.
// EXPECT: mhla: mix must have rank 3,
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Tensor4 batched;

  void use() {
    attention(q, q, q, mix);
#ifndef MHLA_CONTROL
    attention(q, q, q, batched);
#endif
  }
};
