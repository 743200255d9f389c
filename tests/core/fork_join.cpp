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
#include "tests/support/whole_team.hpp"

using mhla::ForkJoin;
using mhla::Index;

static_assert(mhla::Executor<ForkJoin>);
static_assert(!std::is_copy_constructible_v<ForkJoin>);
static_assert(!std::is_move_constructible_v<ForkJoin>);
static_assert(!std::is_convertible_v<int, ForkJoin>);

namespace {

using std::chrono::microseconds;

// Leaves signaling NaNs where what is called next has its variables: one that it uses without
// having set it traps.
__attribute__((noinline)) void spoil_the_stack() {
  volatile std::uint32_t words[40'000];
  for (volatile std::uint32_t& word : words) word = 0x7fa00000;
}

// Sees on which slots tasks run at the same time, and how often each task does.
class Record {
 public:
  Record(Index tasks, Index num_slots)
      : runs_(static_cast<std::size_t>(tasks)), busy_(static_cast<std::size_t>(num_slots)) {}

  void run(Index task, Index slot) {
    if (task < 0 || task >= static_cast<Index>(runs_.size()) || slot < 0 ||
        slot >= static_cast<Index>(busy_.size())) {
      ++foreign_;
      return;
    }
    auto& mine = busy_[static_cast<std::size_t>(slot)];
    if (mine.exchange(1) != 0) ++collisions_;
    ++runs_[static_cast<std::size_t>(task)];
    mine = 0;
  }

  /// Whether every task has run `times` times, on slots that there are, each by one thread.
  bool in_order(int times = 1) const {
    return foreign_ == 0 && collisions_ == 0 &&
           std::all_of(runs_.begin(), runs_.end(), [&](const auto& n) { return n == times; });
  }

 private:
  std::vector<std::atomic<int>> runs_;
  std::vector<std::atomic<int>> busy_;
  std::atomic<int> foreign_{0};
  std::atomic<int> collisions_{0};
};

// Processor time of all threads of the program.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

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
      Record record(tasks, threads);
      team.parallel_for(tasks, [&](Index task, Index slot) { record.run(task, slot); });
      CAPTURE(threads, tasks);
      CHECK(record.in_order());
    }
  }
}

TEST_CASE("fork-join: gives work to every thread, each with its slot", "[core]") {
  // They meet only where every thread takes part, awake or woken.
  for (const microseconds spin : {microseconds{0}, ForkJoin::default_spin}) {
    const ForkJoin team(3, spin);
    for (int call = 0; call < 20; ++call) {
      std::vector<Index> slot_of(3);
      meet(team, 3, &slot_of);
      std::sort(slot_of.begin(), slot_of.end());
      CHECK(slot_of == std::vector<Index>{0, 1, 2});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // all are asleep by now
      meet(team, 2);
    }
  }
}

TEST_CASE("fork-join: ten thousand calls, of threads that sleep and of threads that spin",
          "[core]") {
  for (const microseconds spin : {microseconds{0}, ForkJoin::default_spin})
    for (const int threads : {2, 3}) {
      const ForkJoin team(threads, spin);
      Record record(5, threads);
      std::atomic<long> sum{0};
      for (int call = 0; call < 10000; ++call)
        team.parallel_for(5, [&](Index task, Index slot) {
          record.run(task, slot);
          sum += task;
        });
      CHECK(record.in_order(10000));
      CHECK(sum == 100000);
    }
}

TEST_CASE("fork-join: what tasks write is seen by the caller, and by the tasks of the next call",
          "[core]") {
  const ForkJoin team(3);
  std::vector<long> cells(8, 0);  // plain memory: the team alone keeps the order
  for (int call = 0; call < 2000; ++call) {
    team.parallel_for(8, [&](Index task, Index) {
      cells[static_cast<std::size_t>(task)] += 1 + cells[static_cast<std::size_t>(task)] % 2;
    });
    std::rotate(cells.begin(), cells.begin() + 1, cells.end());
  }
  // 0, 1, 3, 5, ...
  CHECK(cells == std::vector<long>(8, 2 * 2000 - 1));
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
  Record record(100, 3);
  team.parallel_for(100, [&](Index task, Index slot) { record.run(task, slot); });
  CHECK(record.in_order());
}

TEST_CASE("fork-join: after a throw no more tasks are begun", "[core]") {
  // Two threads are in the call when one of them leaves it; the other, which has a second of tasks
  // before it, is told much earlier.
  const ForkJoin team(2);
  std::atomic<int> begun{0};
  const auto task = [&](Index index, Index) {
    ++begun;
    while (begun < 2) std::this_thread::yield();
    if (index == 0) throw std::runtime_error("the first");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  CHECK_THROWS_AS(team.parallel_for(1000, task), std::runtime_error);
  CHECK(begun < 1000);
}

TEST_CASE("fork-join: a call from inside a task runs on the slot of that task", "[core]") {
  for (const int threads : {1, 2, 3}) {
    const ForkJoin team(threads);
    for (const Index outer : {1, 2, 20}) {
      Record record(outer * 10, threads);
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
    Record record(7, threads);
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

TEST_CASE("fork-join: one team inside the tasks of another", "[core]") {
  const ForkJoin outer(2);
  const ForkJoin inner(2);
  Record record(40, 2);
  outer.parallel_for(4, [&](Index i, Index) {
    inner.parallel_for(10, [&](Index j, Index slot) { record.run(i * 10 + j, slot); });
  });
  CHECK(record.in_order());
}

TEST_CASE("fork-join: may be destroyed at once, used or not", "[core]") {
  int runs = 0;
  for (int i = 0; i < 200; ++i) {
    std::atomic<int> count{0};
    {
      const ForkJoin unused(4);
      const ForkJoin used(3, i % 2 == 0 ? microseconds{0} : ForkJoin::default_spin);
      used.parallel_for(3, [&](Index, Index) { ++count; });
    }
    runs += count;
  }
  CHECK(runs == 600);
}

TEST_CASE("fork-join: refuses to be without a thread", "[core]") {
  CHECK(says(error_message<mhla::ShapeError>([] { ForkJoin team(0); }), "mhla::ForkJoin",
             "threads is 0", "at least 1"));
  CHECK(says(error_message<mhla::ShapeError>([] { ForkJoin team(-3); }), "threads is -3"));
  CHECK(ForkJoin().num_slots() == ForkJoin::hardware_threads());
}

TEST_CASE("fork-join: a team without memory for its threads throws", "[core]") {
  const auto make = [](long successes) {
    const FailingAllocation failing(successes);
    const ForkJoin team(4);
  };
  // The list of threads, then each of three.
  for (const long successes : {0, 1, 2, 3}) CHECK_THROWS_AS(make(successes), std::bad_alloc);
  make(1000);
}

TEST_CASE("fork-join: a call allocates nothing", "[core]") {
  for (const microseconds spin : {microseconds{0}, ForkJoin::default_spin}) {
    const ForkJoin team(3, spin);
    meet(team, 3);  // a thread that is still starting allocates
    std::atomic<long> sum{0};
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

// The threads have all been at work, and would take their time from the very beginning.
TEST_CASE("fork-join: idle threads sleep", "[core]") {
  for (const int threads : {2, 8}) {
    const ForkJoin team(threads);
    meet(team, threads);
    const double before = processor_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const double busy = processor_seconds() - before;
    CAPTURE(threads, busy);
    CHECK(busy < 0.05);
  }
}

TEST_CASE("fork-join: threads that are to spin for ever do", "[core]") {
  if (ForkJoin::hardware_threads() < 2) {
    WARN("Not checked: on one core no thread spins.");
    SUCCEED();
    return;
  }
  const ForkJoin team(2, microseconds::max());
  meet(team, 2);
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(processor_seconds() - before > 0.002);
}

// The caller too sleeps, where it has nothing left to do and another's task takes long.
TEST_CASE("fork-join: waiting threads sleep", "[core]") {
  const ForkJoin team(2);
  std::atomic<Index> arrived{0};
  double before = 0;
  team.parallel_for(2, [&](Index, Index slot) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
    if (slot == 0) {
      before = processor_seconds();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  });
  const double busy = processor_seconds() - before;
  CAPTURE(busy);
  CHECK(busy < 0.05);
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

TEST_CASE("fork-join: a caller's rounding and flushing give the same bits on any executor",
          "[core]") {
  using mhla::Attention;
  const ForkJoin team(3);
  const floating_point::OwnEnvironmentExecutor own{3};
  const Attention<mhla::Exp, mhla::Blocks1D> attention{.blocks = {.block = 8}};
  auto x = call::operands<float>(attention, {1, 1, 1, 400, 400, 16, 24});
  const auto v = x.v.view();  // so small that gradients of q and k are subnormal
  for (Index i = 0; i < v.size(); ++i) v.element(i) *= 1e-37f;
  for (const auto setting : floating_point::settings()) {
    CAPTURE(static_cast<int>(setting));
    const floating_point::Scope scope(setting);
    spoil_the_stack();
    auto y = call::forward(attention, x);
    spoil_the_stack();
    auto gradients = call::backward(attention, x);
    const auto check = [&](const auto& executor) {
      auto other_y = call::forward(attention, x, executor);
      auto other_gradients = call::backward(attention, x, executor);
      CHECK(call::bitwise_equal(y.view(), other_y.view()));
      call::check_same_bits(gradients, other_gradients);
    };
    check(team);
    check(own);
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
