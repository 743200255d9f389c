// SPDX-License-Identifier: MIT
// The fork-join executor: what every executor owes, and what is its own: nested calls, callers that
// take turns, sleep, and no allocation.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <mhla/core/error.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/fork_join.hpp>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/support/allocation_counter.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"
#include "tests/support/floating_point.hpp"
#include "tests/support/task_record.hpp"
#include "tests/support/whole_team.hpp"

using mhla::ForkJoin;
using mhla::Index;

static_assert(mhla::Executor<ForkJoin>);
static_assert(!std::is_copy_constructible_v<ForkJoin>);
static_assert(!std::is_move_constructible_v<ForkJoin>);
static_assert(!std::is_convertible_v<int, ForkJoin>);

namespace {

using std::chrono::microseconds;

// Tasks which end only when all of them have begun: each needs a thread of its own.
void meet(const ForkJoin& team, Index tasks, std::vector<Index>* slot_of = nullptr) {
  std::atomic<Index> arrived{0};
  team.parallel_for(tasks, [&](Index task, Index slot) {
    if (slot_of != nullptr) (*slot_of)[static_cast<std::size_t>(task)] = slot;
    ++arrived;
    while (arrived < tasks) std::this_thread::yield();
  });
}

}  // namespace

TEST_CASE("fork-join: runs every task once, no slot twice at a time", "[core]") {
  for (const int threads : {1, 2, 3, 8}) {
    const ForkJoin team(threads);
    REQUIRE(team.num_slots() == threads);
    for (Index tasks = 0; tasks <= 200; ++tasks) {
      TaskRecord record(tasks, threads);
      team.parallel_for(tasks, [&](Index task, Index slot) { record.run(task, slot); });
      CAPTURE(threads, tasks);
      CHECK(record.in_order());
    }
  }
}

TEST_CASE("fork-join: ten thousand calls, of threads that sleep and of threads that spin",
          "[core]") {
  for (const microseconds spin : {microseconds{0}, ForkJoin::default_spin})
    for (const int threads : {2, 3}) {
      const ForkJoin team(threads, spin);
      TaskRecord record(5, threads);
      std::atomic<Index> sum{0};
      for (int call = 0; call < 10000; ++call)
        team.parallel_for(5, [&](Index task, Index slot) {
          record.run(task, slot);
          sum += task;
        });
      CHECK(record.in_order(10000));
      CHECK(sum == 100000);
    }
}

TEST_CASE("fork-join: what a task throws reaches the caller once all have left", "[core]") {
  const ForkJoin team(3);
  for (const Index failing : {0, 1, 50, 99}) {
    std::atomic<int> running{0};
    std::string message;
    try {
      team.parallel_for(100, [&](Index task, Index) {
        ++running;
        std::this_thread::yield();
        --running;
        if (task == failing) throw std::runtime_error("task " + std::to_string(task));
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    CHECK(running == 0);
    CHECK(message == "task " + std::to_string(failing));
  }
  const auto throwing = [](Index, Index) { throw std::runtime_error("every task"); };
  CHECK_THROWS_AS(team.parallel_for(100, throwing), std::runtime_error);
  CHECK_THROWS_AS(team.parallel_for(1, throwing), std::runtime_error);
  CHECK_THROWS_AS(ForkJoin(1).parallel_for(100, throwing), std::runtime_error);
  TaskRecord record(100, 3);
  team.parallel_for(100, [&](Index task, Index slot) { record.run(task, slot); });
  CHECK(record.in_order());
}

TEST_CASE("fork-join: a call from inside a task runs on the slot of that task", "[core]") {
  for (const int threads : {1, 2, 3}) {
    const ForkJoin team(threads);
    for (const Index outer : {1, 2, 20}) {
      TaskRecord record(outer * 10, threads);
      std::atomic<int> moved{0};
      team.parallel_for(outer, [&](Index i, Index slot) {
        team.parallel_for(10, [&](Index j, Index inner_slot) {
          if (inner_slot != slot) ++moved;
          record.run(i * 10 + j, inner_slot);
        });
      });
      CAPTURE(threads, outer);
      CHECK(moved == 0);
      CHECK(record.in_order());
    }
  }
  // What an inner task throws passes through both calls.
  const ForkJoin team(2);
  CHECK_THROWS_AS(team.parallel_for(4,
                                    [&](Index, Index) {
                                      team.parallel_for(4, [](Index, Index) {
                                        throw std::runtime_error("inside");
                                      });
                                    }),
                  std::runtime_error);
}

TEST_CASE("fork-join: threads that call at the same time take turns", "[core]") {
  for (const int threads : {1, 3}) {
    const ForkJoin team(threads);
    TaskRecord record(7, threads);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller)
      callers.emplace_back([&] {
        for (int call = 0; call < 300; ++call) {
          // Calls of one task too are on slot 0 alone.
          team.parallel_for(1, [&](Index, Index slot) { record.run(6, slot); });
          team.parallel_for(6, [&](Index task, Index slot) { record.run(task, slot); });
        }
      });
    for (std::thread& caller : callers) caller.join();
    CHECK(record.in_order(4 * 300));
  }
}

TEST_CASE("fork-join: refuses to be without a thread", "[core]") {
  CHECK(says(error_message<mhla::ShapeError>([] { ForkJoin team(0); }), "mhla::ForkJoin",
             "threads is 0", "at least 1"));
  CHECK(says(error_message<mhla::ShapeError>([] { ForkJoin team(-3); }), "threads is -3"));
  CHECK(ForkJoin().num_slots() == ForkJoin::hardware_threads());
}

TEST_CASE("fork-join: a call allocates nothing", "[core]") {
  for (const microseconds spin : {microseconds{0}, ForkJoin::default_spin}) {
    const ForkJoin team(3, spin);
    meet(team, 3);  // a thread that is still starting allocates
    std::atomic<Index> sum{0};
    const AllocationCounter counter;
    for (int call = 0; call < 1000; ++call) {
      team.parallel_for(20, [&](Index task, Index) { sum += task; });
      team.parallel_for(1, [&](Index, Index) { ++sum; });
    }
    const long allocations = counter.allocations();
    CHECK(allocations == 0);
    CHECK(sum == 191000);
  }
}

TEST_CASE("fork-join: forward and backward have the bits of one thread", "[core]") {
  using mhla::Attention;
  const Attention<mhla::Relu, mhla::Blocks1D> attention{.blocks = {.block = 8}};
  // Whole units on each thread, and units shared out.
  for (const mhla::Shape& shape :
       {mhla::Shape{2, 6, 2, 200, 200, 5, 7}, mhla::Shape{1, 1, 1, 400, 400, 16, 24}}) {
    const auto x = call::operands<float>(attention, shape);
    auto y = call::forward(attention, x);
    auto gradients = call::backward(attention, x);
    for (const int threads : {1, 2, 3, 8}) {
      CAPTURE(threads);
      const ForkJoin team(threads);
      for (int repeat = 0; repeat < 3; ++repeat) {
        auto other_y = call::forward(attention, x, team);
        auto other_gradients = call::backward(attention, x, team);
        CHECK(call::bitwise_equal(y.view(), other_y.view()));
        call::check_same_bits(gradients, other_gradients);
      }
    }
  }
}

TEST_CASE("fork-join: tasks run in the caller's floating-point environment", "[core]") {
  const ForkJoin team(3);
  for (const auto setting : floating_point::settings()) {
    CAPTURE(static_cast<int>(setting));
    std::vector<floating_point::Traits> before(3), inside(3), after(3);
    const auto see = [&](auto& seen) {
      std::atomic<Index> arrived{0};
      team.parallel_for(3, [&](Index task, Index) {
        seen[static_cast<std::size_t>(task)] = floating_point::traits();
        ++arrived;
        while (arrived < 3) std::this_thread::yield();
      });
    };
    see(before);
    auto expected = before[0];
    {
      const floating_point::Scope scope(setting);
      expected = floating_point::traits();
      see(inside);
    }
    see(after);
    CHECK(expected != before[0]);
    for (std::size_t task = 0; task < 3; ++task) {
      CHECK(inside[task] == expected);
      CHECK(after[task] == before[task]);
    }
  }
}

TEST_CASE("fork-join: with a workspace, forward and backward allocate nothing", "[core]") {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D> attention{.blocks = {.block = 8}};
  const auto x = call::operands<float>(attention, {1, 3, 3, 400, 400, 16, 24});
  auto y = x.dy;
  call::Gradients<float> gradients(x);
  const ForkJoin team(2);
  const mhla::Workspace workspace(
      std::max(mhla::forward_workspace_size<float>(attention, x.shape(), team),
               mhla::backward_workspace_size<float>(attention, x.shape(), team)));
  wait_for_whole_team(team);
  const AllocationCounter counter;
  forward_into(attention, team, x.q, x.k, x.v, x.mix, y.view(), workspace);
  backward_into(attention, team, x.q.view(), x.k, x.v, x.mix, x.dy, gradients.views(),
                mhla::Update::overwrite, workspace);
  CHECK(counter.allocations() == 0);
}
