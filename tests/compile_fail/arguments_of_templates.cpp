// SPDX-License-Identifier: MIT
// Wrong template arguments, and wrong names of members in braces: a sentence for each.
// EXPECT: mhla: the 1st argument of this class is an mhla::Attention, or an mhla::Packed
// EXPECT: mhla: the 2nd argument of this class is the scalar of its tensors: float, double,
// EXPECT: mhla: SequenceParallel takes Stages, HeadParallel HostHeads, and both a
// EXPECT: mhla: the 2nd argument of Attention must be a block geometry
// EXPECT: mhla: a ForwardState has numbers of the type that tensors are accumulated in
// EXPECT: mhla: a TensorView<T, Rank> has at least one axis
// EXPECT: mhla: a call's size is forward_workspace_size<T>(attention, shape, executor)
// EXPECT: mhla: call shape_of(q, k, v, mix)
// EXPECT: mhla: call propose_split<T>
// EXPECT: mhla: call extend(mix, larger, extension)
// EXPECT: mhla: call expand(attention, shape, mix, dense)
// EXPECT: mhla: call fit(mix, dense, attention, options)
// EXPECT: mhla: call sequence_parallel<T>(attention, shape, communicator
// EXPECT: mhla: call packed(attention, offsets)
// EXPECT: mhla: call project(mix, onto)
// LINES: 240
#include <mhla/mhla.hpp>
//
#include <cstdint>
#include <mhla/decoding.hpp>
#include <mhla/distributed.hpp>
#include <mhla/packed.hpp>
#include <mhla/policy/expand_mixing.hpp>
#include <mhla/stages.hpp>
#include <mhla/structured_mixing.hpp>
#include <vector>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal>;

struct Call {
  Attention attention;
  mhla::SerialExecutor executor;
  mhla::TensorView<float, 4> q;
  mhla::TensorView<float, 2> mix;
  std::vector<std::int32_t> offsets;
  mhla::Shape shape;
  mhla::Shares shares;

  void use() {
    const mhla::Stages<Attention, float> stages(attention, shape);
    mhla::project(mix, {.low = 0});
#ifndef MHLA_CONTROL
    const mhla::Decoder<mhla::Relu, float> decoder(attention, mix, {.batch = 2});
    const mhla::Stages<Attention, Eigen::bfloat16> of_eigen(attention, shape);
    const mhla::HeadParallel<Attention, float> parallel(attention, shape, executor, shares);
    const mhla::Attention<mhla::Relu> without_blocks;
    const mhla::ForwardState<Attention> state;
    const mhla::TensorView<float, 0> scalar;
    mhla::forward_workspace_size<Attention, float>(attention, shape, executor);
    mhla::shape_of<float>(q, q, q, mix, mix);
    mhla::propose_split<Attention, float>(attention, shape, {.queries = shares});
    mhla::extend<Attention>(mix, mix, mhla::Extension::last_row);
    mhla::expand<float>(attention, shape, mix, mix);
    mhla::fit<double>(mix, mix, attention);
    mhla::sequence_parallel<Attention, float>(attention, shape, executor, shares);
    mhla::packed<float>(attention, offsets);
    mhla::project(mix, {.lowest = 0});
#endif
  }
};
