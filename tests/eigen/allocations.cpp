// SPDX-License-Identifier: MIT
// What the Eigen layer allocates: nothing with a workspace, one block for the workspace without,
// one for each lazy operand, and one result where it cannot be written in place. On a thread pool
// Eigen's scheduling allocates as well, in a number that does not grow with the problem.
#include <cstdlib>
#include <mhla/attention.hpp>
#include <new>

#include "tests/eigen/tensors.hpp"
#include "tests/support/allocation_counter.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::skip;
using mhla::tokens_first;
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
