// SPDX-License-Identifier: MIT
// A std::vector has no axes.
// EXPECT: mhla: forward_into takes mhla::TensorView: for a std::vector
// EXPECT: mhla: backward_into takes mhla::TensorView: for a std::vector
// EXPECT: mhla: attention(q, k, v, mix) takes tensors: Eigen::Tensor, Eigen::TensorMap
#include <mhla/attention.hpp>
#include <vector>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

void use(const Attention& attention, const std::vector<float>& x, mhla::TensorView<float, 4> q,
         mhla::TensorView<float, 2> mix, mhla::WorkspaceView workspace) {
  const mhla::SerialExecutor serial;
#ifdef MHLA_CONTROL
  mhla::forward_into(attention, serial, q, q, q, mix, q, workspace);
  mhla::backward_into(attention, serial, q, q, q, mix, q, {q, mhla::skip, q, mix},
                      mhla::Update::overwrite, workspace);
  attention(q, q, q, mix);
#else
  mhla::forward_into(attention, serial, x, q, q, mix, q, workspace);
  mhla::backward_into(attention, serial, q, q, q, x, q, {q, mhla::skip, q, mix},
                      mhla::Update::overwrite, workspace);
  attention(q, q, x, mix);
#endif
  static_cast<void>(x);
}
