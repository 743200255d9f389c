// SPDX-License-Identifier: MIT
// Wrong arguments of the calls on views: a sentence for each, and none takes 20 lines.
// EXPECT: mhla: y is written to, and its elements are const
// EXPECT: mhla: forward_into and backward_into take mhla::TensorView: for a pointer, a
// EXPECT: mhla: q, k, v, y and dy must have one scalar type
// EXPECT: mhla: q, k, v, y and dy must have rank 4
// EXPECT: mhla: mix must have the type that q is accumulated in
// EXPECT: mhla: views for forward_into and backward_into have elements of float
// EXPECT: mhla: the 1st argument of a call is its attention
// EXPECT: mhla: the 2nd argument of a call runs it
// EXPECT: mhla: call forward_into(attention, executor, q, k, v, mix, y, workspace, save)
// EXPECT: mhla: call backward_into(attention, executor, q, k, v, mix, dy, {dq, dk, dv, dmix}
// EXPECT: mhla: gradients are four, in braces: {dq, dk, dv, dmix}; write mhla::skip
// EXPECT: mhla: gradients are written to, and one of them is const
// EXPECT: mhla: a gradient is a view with the rank and scalar of its operand
// EXPECT: mhla: a call's size is forward_workspace_size<T>(attention, shape, executor)
// EXPECT: mhla: attention(q, k, v, mix) takes tensors: Eigen::Tensor, Eigen::TensorMap
#include <mhla/attention.hpp>
#include <vector>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

struct CallsWithoutConst {
  mhla::Index slots() { return 1; }
  template <class Task>
  void parallel_for(mhla::Index tasks, const Task& task) {
    for (mhla::Index i = 0; i < tasks; ++i) task(i, mhla::Index{0});
  }
};

struct Call {
  Attention attention;
  mhla::SerialExecutor executor;
  mhla::TensorView<float, 4> q;
  mhla::TensorView<float, 2> mix;
  mhla::TensorView<const float, 4> read_only;
  mhla::TensorView<double, 4> wide;
  mhla::TensorView<double, 2> wide_mix;
  mhla::TensorView<int, 4> integers;
  std::vector<float> vector;
  mhla::Workspace workspace;

  void use(CallsWithoutConst& without_const) {
    mhla::forward_into(attention, executor, q, read_only, q, mix, q,
                       {vector.data() == nullptr ? nullptr : workspace.data(), workspace.size()});
    mhla::backward_into(attention, executor, q, q, q, mix, q, {q, mhla::skip, q, mix});
#ifndef MHLA_CONTROL
    mhla::forward_into(attention, executor, q, q, q, mix, read_only);
    mhla::forward_into(attention, executor, vector.data(), q, q, mix, q);
    mhla::forward_into(attention, executor, q, wide, q, mix, q);
    mhla::forward_into(attention, executor, q, q, mix, mix, q);
    mhla::backward_into(attention, executor, q, q, q, wide_mix, q, {q, q, q, mix});
    mhla::forward_into(attention, executor, integers, integers, integers, mix, integers);
    mhla::forward_into(q, executor, q, q, q, mix, q);
    mhla::forward_into(attention, without_const, q, q, q, mix, q);
    mhla::forward_into(attention, executor, q, q, q, mix, q, vector);
    mhla::backward_into(attention, executor, q, q, q, mix, q, q, q, q, mix);
    mhla::backward_into(attention, executor, q, q, q, mix, q, {q, q, q});
    mhla::backward_into(attention, executor, q, q, q, mix, q, {read_only, q, q, mix});
    mhla::backward_into(attention, executor, q, q, q, mix, q, {q, q, q, q});
    static_cast<void>(mhla::forward_workspace_size<int>(attention, {.batch = 1}, executor));
    attention(q, q, vector, mix);
#endif
    static_cast<void>(without_const);
  }
};
