// SPDX-License-Identifier: MIT
// The policies alone know no tensors.
// EXPECT: mhla: attention(q, k, v, mix) takes Eigen tensors and needs #include <mhla/attention.hpp>
// EXPECT: mhla: attention.backward(q, k, v, mix, dy) takes Eigen tensors and needs #include
#ifdef MHLA_CONTROL
#include <mhla/attention.hpp>
#else
#include <mhla/core/tensor_view.hpp>
#include <mhla/policy/variant.hpp>
#endif

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

void use(const Attention& attention, mhla::TensorView<float, 4> q, mhla::TensorView<float, 3> mix) {
  attention(q, q, q, mix);
  attention.backward(q, q, q, mix, q);
}
