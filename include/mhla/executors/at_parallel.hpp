// SPDX-License-Identifier: MIT
// PyTorch's threads as an executor, for operators and LibTorch programs.
#pragma once

#include <ATen/Parallel.h>

#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

/// \ingroup executors
/// Runs the tasks of a call by at::parallel_for, on as many threads as torch.set_num_threads says.
struct AtParallelExecutor {
  /// at::get_num_threads()
  Index num_slots() const { return at::get_num_threads(); }

  /// See Executor.
  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    at::parallel_for(0, tasks, 1, [&task](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        task(static_cast<Index>(i), static_cast<Index>(at::get_thread_num()));
    });
  }
};

MHLA_NAMESPACE_END
