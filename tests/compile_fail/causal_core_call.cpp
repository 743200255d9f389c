// SPDX-License-Identifier: MIT
// The CPU backend has no causal path.
// EXPECT: mhla: the CPU backend runs Bidirectional variants
#include <mhla/cpu/pipeline.hpp>

template <class Causality>
using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, Causality>;

void use(const Attention<mhla::Bidirectional>& attention, const Attention<mhla::Causal>& causal,
         mhla::TensorView<const float, 4> q, mhla::TensorView<const float, 3> mix,
         mhla::TensorView<float, 4> y, mhla::WorkspaceView workspace) {
  mhla::forward_into(attention, mhla::SerialExecutor{}, q, q, q, mix, y, workspace);
  (void)causal;
#ifndef MHLA_CONTROL
  mhla::forward_into(causal, mhla::SerialExecutor{}, q, q, q, mix, y, workspace);
#endif
}
