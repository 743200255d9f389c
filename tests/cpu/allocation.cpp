// SPDX-License-Identifier: MIT
// With a workspace, forward and backward allocate nothing: whatever the scalar, the head dimension
// and the number of blocks, so also where a product's factors outgrow what is packed on the stack.
#include <cstdlib>
#include <mhla/cpu/cpu_plan.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/support/allocation_counter.hpp"

namespace {

using call::operands;
using namespace mhla;

// Several slots that allocate nothing, as the serial executor.
struct SlotsInTurn {
  static constexpr Index num_slots() { return 3; }
  template <class Task>
  static void parallel_for(Index tasks, const Task& task) {
    for (Index i = 0; i < tasks; ++i) task(i, i % 3);
  }
};

template <class T, class V, class E>
void check_nothing_allocated(const V& attention, const Shape& shape, const E& executor) {
  CAPTURE(shape.query_tokens, shape.key_dim, shape.value_dim, sizeof(T));
  const auto x = operands<T>(attention, shape);
  auto y = x.dy;
  call::Gradients<T> gradients(x);
  const Workspace forward(mhla::forward_workspace_size<T>(attention, x.shape(), executor));
  const Workspace backward(mhla::backward_workspace_size<T>(attention, x.shape(), executor));
  ForwardState<T> state;
  state.reserve(mhla::forward_state_size(attention, x.shape()));
  const auto views = gradients.views();
  auto plan = mhla::plan<T>(attention, x.shape(), executor);
  const OperandViews<T> operands{x.q, x.k, x.v, x.mix};

  const AllocationCounter counter;
  forward_into(attention, executor, x.q, x.k, x.v, x.mix, y.view(), forward);
  const long by_forward = counter.allocations();
  forward_into(attention, executor, x.q, x.k, x.v, x.mix, y.view(), forward, &state);
  const long by_saving = counter.allocations();
  backward_into(attention, executor, x.q.view(), x.k, x.v, x.mix, x.dy, views, Update::overwrite,
                backward);
  const long by_backward = counter.allocations();
  backward_into(attention, executor, x.q.view(), x.k, x.v, x.mix, x.dy, views, Update::accumulate,
                backward, &state);
  const long by_saved_backward = counter.allocations();
  plan.forward(executor, operands, y.view());
  plan.backward(executor, operands, x.dy, views);
  CHECK(counter.allocations() == by_saved_backward);
  CHECK(by_forward == 0);
  CHECK(by_saving == 0);
  CHECK(by_backward == 0);
  CHECK(by_saved_backward == 0);
}

template <class Normalizer, class T>
void check_scalar() {
  const auto check = [](Index block, const Shape& shape) {
    const Attention<Relu, Blocks1D, Bidirectional, Normalizer> attention{.blocks = {block}};
    check_nothing_allocated<T>(attention, shape, SerialExecutor{});
    check_nothing_allocated<T>(attention, shape, SlotsInTurn{});
  };
  // Sixty-four blocks, then head dimensions around what is packed on the stack, alone and together.
  check(2, {1, 2, 1, 128, 128, 7, 9});
  check(4, {1, 2, 2, 8, 8, 64, 64, 2});
  check(150, {1, 1, 1, 300, 300, 128, 1});
  check(150, {1, 1, 1, 300, 300, 1, 128});
  check(4, {1, 1, 1, 8, 8, 257, 257});
  check(260, {1, 1, 1, 260, 260, 3, 2});
  check(1, {1, 1, 1, 200, 200, 3, 2});
}

}  // namespace

TEST_CASE("allocation: the counter sees every way to allocate", "[cpu]") {
  const auto counted = [](const auto& allocate) {
    const AllocationCounter counter;
    void* volatile memory = allocate();  // or the compiler may leave both calls out
    const long allocations = counter.allocations();
    std::free(memory);
    return allocations;
  };
  CHECK(counted([] { return std::malloc(1000); }) == 1);
  CHECK(counted([] { return std::calloc(10, 100); }) == 1);
  CHECK(counted([] { return std::aligned_alloc(64, 1024); }) == 1);
  CHECK(counted([] {
          void* memory = nullptr;
          return posix_memalign(&memory, 64, 1024) == 0 ? memory : nullptr;
        }) == 1);
  const AllocationCounter counter;
  const Workspace workspace(1000);
  CHECK(counter.allocations() == 1);
}

TEST_CASE("allocation: nothing in float", "[cpu]") { check_scalar<MixedKeySum, float>(); }
TEST_CASE("allocation: nothing in double", "[cpu]") { check_scalar<MixedKeySum, double>(); }
TEST_CASE("allocation: nothing in long double", "[cpu]") {
  check_scalar<MixedKeySum, long double>();
}
TEST_CASE("allocation: nothing under MixedProduct", "[cpu]") {
  const Attention<Relu, Blocks1D, Bidirectional, MixedProduct> attention{.blocks = {.block = 40}};
  check_nothing_allocated<float>(attention, {1, 2, 1, 2560, 2560, 5, 7}, SerialExecutor{});
  check_nothing_allocated<float>(attention, {1, 2, 1, 80, 80, 257, 7, 2}, SerialExecutor{});
}

TEST_CASE("allocation: nothing with structured mixings", "[cpu]") {
  using namespace mhla;
  const Attention<Relu, Blocks1D, Causal, MixedKeySum, NoRotation, RecurrentMixing> recurrent{
      .blocks = {.block = 4}, .mixing = {.states = 3}};
  check_nothing_allocated<float>(recurrent, {1, 2, 1, 600, 600, 5, 7, 2}, SerialExecutor{});
  const Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, NoRotation, SeparableMixing>
      separable{.blocks = {.grid = {48, 48}, .block = {2, 2}}, .mixing = {.rank = 2}};
  check_nothing_allocated<float>(separable, {1, 2, 1, 2304, 2304, 5, 7, 2}, SlotsInTurn{});
}

TEST_CASE("allocation: one that a state has to make is seen", "[cpu]") {
  const Attention<Relu, Blocks1D> attention{.blocks = {.block = 4}, .path = mhla::Path::linear};
  const auto x = operands<float>(attention, {1, 1, 1, 8, 8, 5, 7});
  auto y = x.dy;
  const Workspace workspace(
      mhla::forward_workspace_size<float>(attention, x.shape(), SerialExecutor{}));
  ForwardState<float> state;
  const AllocationCounter counter;
  forward_into(attention, SerialExecutor{}, x.q, x.k, x.v, x.mix, y.view(), workspace, &state);
  CHECK(counter.allocations() == 1);
}
