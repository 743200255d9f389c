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

// A call of growing size: blocks of 16 tokens.
struct Sized {
  mhla::Attention<mhla::Relu, mhla::Blocks1D> attention{.blocks = {.block = 16}};
  Tensor4 q, v, y, dq;
  Eigen::Tensor<float, 2, Eigen::RowMajor> mix, dmix;
  mhla::Workspace forward, backward;

  template <class E>
  Sized(const E& executor, Eigen::Index batch, Eigen::Index heads, Eigen::Index blocks,
        Eigen::Index dim)
      : q(test::tensor<float, Eigen::RowMajor>(1, batch, heads, 16 * blocks, dim)),
        v(q),
        y(q),
        dq(q),
        mix(test::tensor<float, Eigen::RowMajor>(2, blocks, blocks)),
        dmix(mix) {
    const mhla::Shape shape{batch, heads, heads, 16 * blocks, 16 * blocks,
                            dim,   dim,   1,     blocks,      blocks};
    forward = mhla::Workspace(mhla::forward_workspace_size<float>(attention, shape, executor));
    backward = mhla::Workspace(mhla::backward_workspace_size<float>(attention, shape, executor));
  }
};

}  // namespace

TEST_CASE("allocations: the counter sees every way to allocate", "[eigen]") {
  CHECK(allocations_of([] { ::operator delete(::operator new(100)); }) == 1);
  CHECK(allocations_of([] {
          ::operator delete (::operator new (100, std::align_val_t{64}), std::align_val_t{64});
        }) == 1);
  CHECK(allocations_of([] {
          void* volatile memory = std::malloc(100);
          std::free(memory);
        }) == 1);
  CHECK(allocations_of([] {
          void* volatile memory = std::aligned_alloc(64, 128);
          std::free(memory);
        }) == 1);
  CHECK(allocations_of([] {
          void* memory = nullptr;
          if (posix_memalign(&memory, 64, 100) == 0) std::free(memory);
        }) == 1);
  CHECK(allocations_of([] { const mhla::Workspace workspace(100); }) == 1);
  CHECK(allocations_of([] { const Tensor4 tensor(1, 2, 3, 4); }) == 1);
  const AllocationCounter counter;
  void* volatile memory = std::malloc(100);
  CHECK(counter.live() >= 1);
  std::free(memory);
}

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

TEST_CASE("allocations: none for 16-bit tensors, which are read and written as they are",
          "[eigen]") {
  using Tensor16 = Eigen::Tensor<Eigen::bfloat16, 4, Eigen::RowMajor>;
  const Tensors t;
  const Tensor16 q = t.q.cast<Eigen::bfloat16>(), k = t.k.cast<Eigen::bfloat16>(),
                 v = t.v.cast<Eigen::bfloat16>(), dy = t.dy.cast<Eigen::bfloat16>();
  const mhla::SerialExecutor serial;
  const mhla::Workspace forward(
      mhla::forward_workspace_size<Eigen::bfloat16>(t.attention, t.shape(), serial));
  const mhla::Workspace backward(
      mhla::backward_workspace_size<Eigen::bfloat16>(t.attention, t.shape(), serial));
  Tensor16 y = dy, z = tokens_first(dy), dq = q, dk = k, dv = v;
  Tensor3 dmix = t.mix;
  CHECK(allocations_of([&] { y = t.attention(q, k, v, t.mix).with(forward); }) == 0);
  CHECK(allocations_of([&] { tokens_first(z) = t.attention(q, k, v, t.mix).with(forward); }) == 0);
  CHECK(allocations_of([&] {
          mhla::gradients(dq, dk, dv, dmix) +=
              t.attention.backward(q, k, v, t.mix, dy).with(backward);
        }) == 0);
}

TEST_CASE("allocations: one for each temporary", "[eigen]") {
  const Tensors t;
  const Eigen::DefaultDevice device;
  const mhla::SerialExecutor serial;
  const mhla::Workspace memory(
      mhla::backward_workspace_size<float>(t.attention, t.shape(), serial) +
      mhla::forward_workspace_size<float>(t.attention, t.shape(), serial));
  Tensor4 y = t.output();
  const auto forward = [&](const auto& expression) {
    return allocations_of([&] { y.device(device) = expression; });
  };
  CHECK(forward(t.attention(t.q, t.k, t.v, t.mix)) == 1);  // the workspace
  CHECK(forward(t.attention(t.q * 2.f, t.k, t.v, t.mix).with(memory)) == 1);
  const Tensor4 q = tokens_first(t.q);
  CHECK(forward(t.attention(tokens_first(q * 2.f), t.k, t.v, t.mix).with(memory)) == 1);
  CHECK(forward(t.attention(t.q * 2.f, t.k * 2.f, t.v * 2.f, t.mix * 2.f).with(memory)) == 4);
  // A composed result: its memory, and the count of those who share it.
  CHECK(forward(t.attention(t.q, t.k, t.v, t.mix).with(memory) * 2.f) == 2);

  // One sequence of a batch lies in one piece and is read in place; some of its tokens do not.
  const auto cache = test::tensor<float, Eigen::RowMajor>(1, 5, 3, 30, 9);
  const auto slice = [&](Eigen::Index batch, Eigen::Index tokens) {
    return cache.slice(Eigen::array<Eigen::Index, 4>{{batch, 0, 0, 0}},
                       Eigen::array<Eigen::Index, 4>{{2, 3, tokens, 9}});
  };
  const auto whole = test::tensor<float, Eigen::RowMajor>(1, 2, 3, 30, 8);
  const auto mix = test::tensor<float, Eigen::RowMajor>(1, 3, 6);
  CHECK(forward(t.attention(t.q, whole, slice(3, 30), mix)) == 1);
  CHECK(forward(t.attention(t.q, t.k, slice(3, 22), t.mix)) == 2);

  // A destination in pieces, and one over an operand.
  Tensor4 longer(2, 6, 30, 9);
  CHECK(allocations_of([&] {
          longer.slice(Eigen::array<Eigen::Index, 4>{{0, 0, 1, 0}}, y.dimensions()).device(device) =
              t.attention(t.q, t.k, t.v, t.mix).with(memory);
        }) == 1);
  const Tensor4 k = test::tensor<float, Eigen::RowMajor>(1, 2, 3, 22, 9);
  CHECK(forward(t.attention(y, k, t.v, t.mix)) == 2);

  Tensor4 dq = t.q;
  Tensor4 dk = t.k;
  Tensor4 dv = t.v;
  Tensor3 dmix = t.mix;
  const auto backward = [&](const auto& expression) {
    return allocations_of([&] { mhla::gradients(dq, dk, dv, dmix).device(device) = expression; });
  };
  CHECK(backward(t.attention.backward(t.q, t.k, t.v, t.mix, t.dy)) == 1);
  CHECK(backward(t.attention.backward(t.q, t.k, t.v, t.mix, t.dy * 2.f).with(memory)) == 1);
  CHECK(backward(t.attention.backward(dq, t.k, t.v, dmix, t.dy).with(memory)) == 2);
}

TEST_CASE("allocations: on a thread pool they do not grow with the problem", "[eigen]") {
  Eigen::ThreadPool pool(3);
  const Eigen::ThreadPoolDevice device(&pool, 3);
  const mhla::ThreadPoolExecutor executor = mhla::executor_for(device);

  // A thread of the pool allocates when it starts, which may be at any time: wait for all three.
  Eigen::Barrier started(3);
  for (int thread = 0; thread < 3; ++thread) {
    pool.Schedule([&] {
      started.Notify();
      started.Wait();
    });
  }
  started.Wait();

  // The scheduling of one parallel_for.
  const auto scheduling = [&](mhla::Index tasks) {
    return allocations_of([&] { executor.parallel_for(tasks, [](mhla::Index, mhla::Index) {}); });
  };
  const long once = scheduling(2);
  CHECK(scheduling(3) == once);
  CHECK(scheduling(100) == once);
  CHECK(scheduling(100000) == once);
  CHECK(scheduling(1) == 0);

  const auto forward = [&](Eigen::Index batch, Eigen::Index heads, Eigen::Index blocks,
                           Eigen::Index dim) {
    Sized t(executor, batch, heads, blocks, dim);
    return allocations_of(
        [&] { t.y.device(device) = t.attention(t.q, t.q, t.v, t.mix).with(t.forward); });
  };
  const auto backward = [&](Eigen::Index batch, Eigen::Index heads, Eigen::Index blocks,
                            Eigen::Index dim) {
    Sized t(executor, batch, heads, blocks, dim);
    return allocations_of([&] {
      mhla::gradients(t.dq, skip, t.y, t.dmix).device(device) =
          t.attention.backward(t.q, t.q, t.v, t.mix, t.v).with(t.backward);
    });
  };
  const long forward_small = forward(1, 3, 4, 8);
  const long backward_small = backward(1, 3, 4, 8);
  CHECK(forward_small == once);
  CHECK(backward_small <= 2 * once);
  for (const Eigen::Index heads : {3, 6, 12, 24}) {
    CHECK(forward(1, heads, 4, 8) == forward_small);
    CHECK(backward(1, heads, 4, 8) == backward_small);
  }
  for (const Eigen::Index blocks : {8, 16, 32}) {
    CHECK(forward(1, 3, blocks, 8) == forward_small);
    CHECK(backward(1, 3, blocks, 8) == backward_small);
  }
  for (const Eigen::Index dim : {16, 64, 128}) {
    CHECK(forward(1, 3, 4, dim) == forward_small);
    CHECK(backward(1, 3, 4, dim) == backward_small);
  }
  CHECK(forward(4, 3, 4, 8) == forward_small);
  CHECK(backward(4, 3, 4, 8) == backward_small);

  // One head for three threads: its blocks are shared out, in a few loops more, each of which
  // schedules or, where it has one task only, does not.
  const long forward_shared_out = forward(1, 1, 64, 8);
  const long backward_shared_out = backward(1, 1, 64, 8);
  CHECK(forward_shared_out <= 4 * once);
  CHECK(backward_shared_out <= 8 * once);
  for (const Eigen::Index blocks : {2, 16, 128}) {
    CHECK(forward(1, 1, blocks, 64) <= forward_shared_out);
    CHECK(backward(1, 1, blocks, 64) <= backward_shared_out);
  }
}
