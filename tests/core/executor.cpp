// SPDX-License-Identifier: MIT
#include <mhla/core/executor.hpp>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

using mhla::ExecutorRef;
using mhla::Index;
using mhla::SerialExecutor;

static_assert(mhla::Executor<SerialExecutor>);
static_assert(mhla::Executor<ExecutorRef>);
static_assert(!mhla::Executor<int>);

namespace {

// Runs tasks backwards on three slots in turn.
struct BackwardExecutor {
  static Index slots() { return 3; }
  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    for (Index i = tasks - 1; i >= 0; --i) task(i, i % 3);
  }
};
static_assert(mhla::Executor<BackwardExecutor>);

using Calls = std::vector<std::pair<Index, Index>>;

template <class E>
Calls calls_of(const E& executor, Index tasks) {
  Calls calls;
  executor.parallel_for(tasks, [&](Index task, Index slot) { calls.emplace_back(task, slot); });
  return calls;
}

}  // namespace

TEST_CASE("executor: the serial one runs every task in order on slot 0", "[core]") {
  CHECK(SerialExecutor::slots() == 1);
  CHECK(calls_of(SerialExecutor{}, 3) == Calls{{0, 0}, {1, 0}, {2, 0}});
  CHECK(calls_of(SerialExecutor{}, 0).empty());
}

TEST_CASE("executor: a borrowed executor does what its owner does", "[core]") {
  const BackwardExecutor executor;
  const ExecutorRef borrowed = executor;
  CHECK(borrowed.slots() == 3);
  CHECK(calls_of(borrowed, 4) == Calls{{3, 0}, {2, 2}, {1, 1}, {0, 0}});
  CHECK(calls_of(borrowed, 4) == calls_of(executor, 4));
}
