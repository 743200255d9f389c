// SPDX-License-Identifier: MIT
// OpenMP's threads as an executor. Compile with -fopenmp.
#pragma once

#ifndef _OPENMP
#error "mhla: <mhla/executors/openmp.hpp> needs OpenMP: compile and link with -fopenmp"
#endif

#include <omp.h>

#include <exception>
#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

/// \ingroup executors
/// Runs the tasks of a call on OpenMP's threads, drawn one by one. Inside a parallel region, unless
/// nested ones are enabled, the calling thread runs all of them. If tasks throw, the caller gets
/// one of the exceptions after all tasks have run.
struct OpenMpExecutor {
  int threads = 0;  ///< 0: omp_get_max_threads()

  /// Threads of a call.
  Index num_slots() const { return threads > 0 ? threads : omp_get_max_threads(); }

  /// See Executor.
  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    std::exception_ptr failure;
#pragma omp parallel for num_threads(static_cast <int>(num_slots())) schedule(dynamic, 1)
    for (Index i = 0; i < tasks; ++i) {
      try {
        task(i, static_cast<Index>(omp_get_thread_num()));
      } catch (...) {
#pragma omp critical(mhla_openmp_executor)
        failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }
};

MHLA_NAMESPACE_END
