// SPDX-License-Identifier: MIT
// Wrong arguments of calls on views, then of the other public functions: a sentence for each, and
// none takes 20 lines.
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
// EXPECT: mhla: call initialize(mix, attention, options), or (mix, grid, options)
// EXPECT: mhla: call project(mix, onto)
// EXPECT: mhla: packed borrows its offsets, and these are a temporary
// EXPECT: mhla: the offsets of packed sequences are std::int32_t or std::int64_t
// EXPECT: mhla: call padded(attention, mask)
// EXPECT: mhla: make a decoder by Decoder<Attention, T>(attention, mix, shape)
// EXPECT: mhla: a decoder of T steps by step(q, k, v, y)
// EXPECT: mhla: call summarize(executor, keys, k, v, summaries, workspace)
// EXPECT: mhla: make a CudaDevice from (stream, cublas, {memory, bytes}, products, path)
// EXPECT: mhla: call plan<T>(attention, shape, executor)
// EXPECT: mhla: call shape_of(q, k, v, mix)
// EXPECT: mhla: call heads_view(data, tokens, heads, dim, row_stride = 0, batch = 1)
// EXPECT: mhla: call qkv_views(data, tokens, heads, dim, batch = 1, order =
// EXPECT: mhla: call slice(view, axis, first, count) with a view
// EXPECT: mhla: make_view(data, extents...) takes a pointer and an integer for each axis
// EXPECT: mhla: call mhla_forward(attention, q, k, v, mix, y, masks)
// EXPECT: mhla: call equal_shares(blocks, ranks) or equal_shares(attention, shape, ranks)
// EXPECT: mhla: a ForkJoinDevice borrows its team
#include <mhla/mhla.hpp>
//
#include <cstdint>
#include <mhla/cuda.hpp>
#include <mhla/decoding.hpp>
#include <mhla/distributed.hpp>
#include <mhla/eigen/fork_join_device.hpp>
#include <mhla/packed.hpp>
#include <mhla/reference/mhla.hpp>
#include <mhla/stages.hpp>
#include <vector>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal>;
using Offsets = std::vector<std::int32_t>;

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
  mhla::TensorView<float, 2> real_mask;
  Eigen::MatrixXf matrix;
  std::vector<float> vector;
  std::vector<std::size_t> unsigned_offsets;
  Offsets offsets;
  mhla::Shape shape;
  mhla::Workspace workspace;
  void* memory = nullptr;
  std::size_t bytes = 0;

  void use(CallsWithoutConst& without_const, mhla::Decoder<Attention, float>& decoder,
           const mhla::Stages<Attention, float>& stages) {
    mhla::forward_into(attention, executor, q, read_only, q, mix, q,
                       {vector.data() == nullptr ? nullptr : workspace.data(), workspace.size()});
    mhla::backward_into(attention, executor, q, q, q, mix, q, {q, mhla::skip, q, mix});
    mhla::initialize(mhla::mix_view(matrix), attention, {.transform = mhla::Transform::linear});
    mhla::packed(attention, offsets);
    const mhla::CudaDevice cuda(nullptr, nullptr, {memory, bytes});
    mhla::plan<float>(attention, {.batch = 1}, cuda);
    mhla::reference::mhla_forward(attention, q, q, q, mix, q);
    decoder.step(q, q, q, q);
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
    mhla::initialize(matrix, attention);
    mhla::project(vector);
    mhla::packed(attention, Offsets{0, 5});
    mhla::packed(attention, unsigned_offsets);
    mhla::padded(attention, real_mask);
    const mhla::Decoder<Attention, float> wrong(attention, matrix, {.batch = 2});
    decoder.step(q, q, q, read_only);
    stages.summarize(executor, {0, 1}, q, vector, mix, workspace);
    const mhla::CudaDevice in_floats(nullptr, nullptr, {vector.data(), vector.size()});
    mhla::plan<float>(attention, executor, shape);
    mhla::shape_of(q, q, q, q);
    mhla::heads_view(vector, 4);
    mhla::qkv_views(vector, 64, 4, 8);
    mhla::slice(vector, 1, 0, 2);
    mhla::make_view(vector, 4, 4);
    mhla::reference::mhla_forward(attention, q, q, q, mix, read_only);
    mhla::equal_shares(attention, shape);
    const mhla::ForkJoinDevice of_temporary{mhla::ForkJoin(1)};
#endif
    static_cast<void>(without_const);
    static_cast<void>(stages);
  }
};
