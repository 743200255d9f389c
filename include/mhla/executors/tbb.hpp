// SPDX-License-Identifier: MIT
// oneTBB's threads as an executor. Link TBB::tbb.
#pragma once

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

/// \ingroup executors
/// Runs the tasks of a call in the calling thread's arena. For fewer threads, make the call inside
/// tbb::task_arena::execute. What a task throws reaches the caller; tasks that have not begun are
/// not run then.
struct TbbExecutor {
  /// Threads of the arena.
  Index num_slots() const { return tbb::this_task_arena::max_concurrency(); }

  /// See Executor.
  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    tbb::parallel_for(
        tbb::blocked_range<Index>(0, tasks),
        [&task](const tbb::blocked_range<Index>& range) {
          const Index slot = tbb::this_task_arena::current_thread_index();
          for (Index i = range.begin(); i != range.end(); ++i) task(i, slot);
        },
        tbb::simple_partitioner());
  }
};

MHLA_NAMESPACE_END
