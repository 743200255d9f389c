// SPDX-License-Identifier: MIT
// The CPU backend has no causal path.
// EXPECT: mhla: the CPU backend runs Bidirectional variants
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

using CausalAttention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal>;

void use(const Attention& attention, const CausalAttention& causal, const Tensor4& q,
         const Tensor3& mix, Tensor4& y) {
  y = attention(q, q, q, mix);
  (void)causal;
#ifndef MHLA_CONTROL
  y = causal(q, q, q, mix);
#endif
}
