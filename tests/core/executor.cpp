// SPDX-License-Identifier: MIT
#include <cstddef>
#include <limits>
#include <mhla/core/error.hpp>
#include <mhla/core/executor.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"
#include "tests/support/floating_point.hpp"

using namespace mhla;

static_assert(mhla::Executor<SerialExecutor>);
static_assert(mhla::Executor<ExecutorRef>);
static_assert(!mhla::Executor<int>);

namespace {

// Runs tasks backwards on three slots in turn.
struct BackwardExecutor {
  static Index slots() { return 3; }  // the former name
  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    for (Index i = tasks - 1; i >= 0; --i) task(i, i % 3);
  }
};
static_assert(mhla::Executor<BackwardExecutor>);

// Says that it has so many.
struct Claiming {
  Index claimed;
  Index num_slots() const { return claimed; }
  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    SerialExecutor::parallel_for(tasks, task);
  }
};

using Calls = std::vector<std::pair<Index, Index>>;

template <class E>
Calls calls_of(const E& executor, Index tasks) {
  Calls calls;
  executor.parallel_for(tasks, [&](Index task, Index slot) { calls.emplace_back(task, slot); });
  return calls;
}

}  // namespace

TEST_CASE("executor: the serial one runs every task in order on slot 0", "[core]") {
  CHECK(SerialExecutor::num_slots() == 1);
  CHECK(calls_of(SerialExecutor{}, 3) == Calls{{0, 0}, {1, 0}, {2, 0}});
  CHECK(calls_of(SerialExecutor{}, 0).empty());
}

TEST_CASE("executor: a borrowed executor does what its owner does", "[core]") {
  const BackwardExecutor executor;
  const ExecutorRef borrowed = executor;
  CHECK(borrowed.num_slots() == 3);
  CHECK(calls_of(borrowed, 4) == Calls{{3, 0}, {2, 2}, {1, 1}, {0, 0}});
  CHECK(calls_of(borrowed, 4) == calls_of(executor, 4));
}

TEST_CASE("executor: any executor's tasks run in the caller's floating-point environment",
          "[core]") {
  const floating_point::OwnEnvironmentExecutor executor{2};
  for (const auto setting : floating_point::settings()) {
    CAPTURE(static_cast<int>(setting));
    const auto before = floating_point::traits();
    const floating_point::Scope scope(setting);
    const auto expected = floating_point::traits();
    CHECK(expected != before);
    std::vector<floating_point::Traits> seen(4);
    ExecutorRef(executor).parallel_for(4, [&](Index task, Index) {
      seen[static_cast<std::size_t>(task)] = floating_point::traits();
    });
    for (const auto& traits : seen) CHECK(traits == expected);
  }
}

TEST_CASE("executor: slots that cannot be are refused", "[core]") {
  for (const Index num_slots :
       {Index{0}, Index{-1}, Index{1} << 40, std::numeric_limits<Index>::min()})
    CHECK(error_message<mhla::ShapeError>([&] { ExecutorRef(Claiming{num_slots}).num_slots(); }) ==
          "mhla: the executor has " + std::to_string(num_slots) + " slots but must have 1 to 2^20");
  CHECK(ExecutorRef(Claiming{1 << 20}).num_slots() == 1 << 20);
}
