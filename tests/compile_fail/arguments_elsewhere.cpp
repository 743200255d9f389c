// SPDX-License-Identifier: MIT
// Wrong arguments of the other public functions: a sentence for each, and none takes 20 lines.
// EXPECT: mhla: call initialize(mix, attention, options), or (mix, grid, options)
// EXPECT: mhla: call project(mix, onto)
// EXPECT: mhla: packed borrows its offsets, and these are a temporary
// EXPECT: mhla: the offsets of packed sequences are std::int32_t or std::int64_t
// EXPECT: mhla: call padded(attention, mask)
// EXPECT: mhla: make a decoder by Decoder<Attention, T>(attention, mix, shape)
// EXPECT: mhla: a decoder of T steps by step(q, k, v, y)
// EXPECT: mhla: call summarize(executor, keys, k, v, summaries, workspace)
// EXPECT: mhla: make a CudaDevice from (stream, cublas, {memory, bytes}, products, path)
// EXPECT: mhla: call plan<T>(attention, shape, device, state)
// EXPECT: mhla: call shape_of(q, k, v, mix)
// EXPECT: mhla: call heads_view(data, tokens, heads, dim, row_stride, batch = 1)
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

struct Call {
  Attention attention;
  mhla::SerialExecutor executor;
  mhla::TensorView<float, 4> q;
  mhla::TensorView<float, 2> mix;
  mhla::TensorView<const float, 4> read_only;
  mhla::TensorView<float, 2> real_mask;
  Eigen::MatrixXf matrix;
  std::vector<float> vector;
  std::vector<std::size_t> unsigned_offsets;
  Offsets offsets;
  mhla::Shape shape;
  mhla::Workspace workspace;
  void* memory = nullptr;
  std::size_t bytes = 0;

  void use(mhla::Decoder<Attention, float>& decoder, const mhla::Stages<Attention, float>& stages) {
    mhla::initialize(mhla::mix_view(matrix), attention, {.transform = mhla::Transform::linear});
    mhla::packed(attention, offsets);
    const mhla::CudaDevice cuda(nullptr, nullptr, {memory, bytes});
    mhla::plan<float>(attention, {.batch = 1}, cuda);
    mhla::reference::mhla_forward(attention, q, q, q, mix, q);
    decoder.step(q, q, q, q);
#ifndef MHLA_CONTROL
    mhla::initialize(matrix, attention);
    mhla::project(vector);
    mhla::packed(attention, Offsets{0, 5});
    mhla::packed(attention, unsigned_offsets);
    mhla::padded(attention, real_mask);
    const mhla::Decoder<Attention, float> wrong(attention, matrix, {.batch = 2});
    decoder.step(q, q, q, read_only);
    stages.summarize(executor, {0, 1}, q, vector, mix, workspace);
    const mhla::CudaDevice in_floats(nullptr, nullptr, {vector.data(), vector.size()});
    mhla::plan<float>(attention, shape, executor);
    mhla::shape_of(q, q, q, q);
    mhla::heads_view(vector, 4);
    mhla::make_view(vector, 4, 4);
    mhla::reference::mhla_forward(attention, q, q, q, mix, read_only);
    mhla::equal_shares(attention, shape);
    const mhla::ForkJoinDevice of_temporary{mhla::ForkJoin(1)};
#endif
    static_cast<void>(stages);
  }
};
