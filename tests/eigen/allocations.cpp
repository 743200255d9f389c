// SPDX-License-Identifier: MIT
// What the Eigen layer allocates: nothing with a workspace or a plan, one block for the workspace
// without, one for each lazy operand, and one result where it cannot be written in place. On a
// thread pool Eigen's scheduling allocates as well, in a number that does not grow with the
// problem.
#include <cstdlib>
#include <mhla/attention.hpp>
#include <new>

#include "tests/eigen/tensors.hpp"
#include "tests/support/allocation_counter.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::skip;
using mhla::tokens_first;
using test::memory_of;
using Tensors = test::Tensors<float, Eigen::RowMajor>;
using Tensor4 = Tensors::Tensor4;
using Tensor3 = Tensors::Tensor3;

template <class Run>
long allocations_of(const Run& run) {
  const AllocationCounter counter;
  run();
  return counter.allocations();
}

}  // namespace

TEST_CASE("allocations: none with a workspace", "[eigen]") {
  const Tensors t;
  const Eigen::DefaultDevice device;
  const mhla::SerialExecutor serial;
  const mhla::Workspace workspace(
      mhla::backward_workspace_size<float>(t.attention, t.shape(), serial) +
      mhla::forward_workspace_size<float>(t.attention, t.shape(), serial));
  Tensor4 y = t.output();
  Tensor4 z = tokens_first(y);
  const Tensor4 q = tokens_first(t.q);
  Eigen::Tensor<float, 5, Eigen::RowMajor> layers(4, 2, 6, 20, 9);
  mhla::ForwardState<float> state;
  state.reserve(mhla::forward_state_size(t.attention, t.shape()));

  CHECK(allocations_of(
            [&] { y.device(device) = t.attention(t.q, t.k, t.v, t.mix).with(workspace); }) == 0);
  CHECK(allocations_of([&] { y = t.attention(t.q, t.k, t.v, t.mix).with(workspace); }) == 0);
  CHECK(allocations_of([&] {
          tokens_first(z).device(device) =
              t.attention(tokens_first(q), t.k, t.v, t.mix).with(workspace);
        }) == 0);
  CHECK(allocations_of([&] {
          layers.chip<0>(2).device(device) =
              t.attention(t.q.reshape(t.q.dimensions()), t.key_view(), t.v, t.mix).with(workspace);
        }) == 0);
  CHECK(allocations_of([&] {
          y.device(device) = t.attention(t.q, t.k, t.v, t.mix).save(state).with(workspace);
        }) == 0);

  Tensor4 dq = t.q;
  Tensor4 dk = t.k;
  Tensor4 dv = tokens_first(t.v);
  Tensor3 dmix = t.mix;
  const auto backward = t.attention.backward(tokens_first(q), t.k, t.v, t.mix, t.dy);
  CHECK(allocations_of([&] {
          mhla::gradients(dq, dk, tokens_first(dv), dmix) = backward.with(workspace);
        }) == 0);
  CHECK(allocations_of([&] {
          mhla::gradients(skip, dk, skip, dmix).device(device) +=
              backward.with(workspace).saved(state);
        }) == 0);
}

TEST_CASE("allocations: none with a plan, which gives the bits of the core", "[eigen]") {
  const Tensors t;
  auto plan = mhla::plan<float>(t.attention, t.shape(), mhla::SerialExecutor{});
  mhla::ForwardState<float> state;
  state.reserve(mhla::forward_state_size(t.attention, t.shape()));
  Tensor4 y = t.output();
  Tensor4 dq = t.q;
  Tensor4 dk = t.k;
  Tensor4 dv = t.v;
  Tensor3 dmix = t.mix;
  const auto kept = [&] {
    return test::Gradients<float>{memory_of(dq), memory_of(dk), memory_of(dv), memory_of(dmix)};
  };
  const test::Gradients<float> before = kept();
  CHECK(allocations_of([&] { y = plan(t.q, t.k, t.v, t.mix).save(state); }) == 0);
  CHECK(memory_of(y) == t.expected());
  CHECK(allocations_of([&] {
          mhla::gradients(dq, dk, dv, dmix) +=
              plan.backward(t.q, t.k, t.v, t.mix, t.dy).saved(state);
        }) == 0);
  const auto [q, k, v, mix] = test::expected_gradients(t, before, mhla::Update::accumulate);
  CHECK(memory_of(dq) == q);
  CHECK(memory_of(dk) == k);
  CHECK(memory_of(dv) == v);
  CHECK(memory_of(dmix) == mix);
}
