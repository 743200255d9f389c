// SPDX-License-Identifier: MIT
// A view is no destination of an Eigen expression.
// EXPECT: mhla: nothing is written through `view = ...`: call mhla::forward_into(
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

void use(const Attention& attention, mhla::TensorView<float, 4> q, mhla::TensorView<float, 3> mix,
         float* y) {
#ifdef MHLA_CONTROL
  Eigen::TensorMap<Eigen::Tensor<float, 4, Eigen::RowMajor>>(y, 1, 2, 3, 4) =
      attention(q, q, q, mix);
#else
  mhla::make_view(y, 1, 2, 3, 4) = attention(q, q, q, mix);
#endif
}
