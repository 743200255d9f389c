// SPDX-License-Identifier: MIT
// Nor have complex numbers.
// EXPECT: mhla: q, k, v and dy must be tensors of float, double, another floating-point type
#include <complex>
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Eigen::Tensor<std::complex<float>, 4, Eigen::RowMajor> q;
  Tensor3 mix;

  void use() {
    attention(q.real(), q.real(), q.real(), mix);
#ifndef MHLA_CONTROL
    attention(q, q, q, mix);
#endif
  }
};
