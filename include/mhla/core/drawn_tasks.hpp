// SPDX-License-Identifier: MIT
// How the threads of an executor share the tasks of a call.
#pragma once

#include <atomic>
#include <exception>
#include <mhla/core/executor.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// A call's tasks, of which each thread draws one after another until none is left, in the
// floating-point environment of the thread that made this.
struct DrawnTasks {
  // Those that all threads write lie apart from what all read.
  static constexpr std::size_t cache_line = 64;

  const TaskRef task;
  const Index tasks;
  const FloatingPointModes modes = FloatingPointModes::of_this_thread();
  alignas(cache_line) std::atomic<Index> next{0};
  std::atomic<int> failed{0};  // a bool's exchange needs libatomic on some machines
  std::exception_ptr error{};  // what the first task that failed threw; the others are not run

  void draw(Index slot) {
    const FloatingPointScope scope(modes);
    try {
      for (Index drawn = next++; drawn < tasks; drawn = next++) task(drawn, slot);
    } catch (...) {  // must not leave the thread
      next = tasks;
      if (failed.exchange(1) == 0) error = std::current_exception();
    }
  }
};
/// \endcond

MHLA_NAMESPACE_END
