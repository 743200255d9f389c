// SPDX-License-Identifier: MIT
// Who runs the tasks of a call. The library makes no threads; it uses the caller's executor.
#pragma once

#include <cfenv>
#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// Stands for any task in the concept below.
struct TaskArchetype {
  void operator()(Index /*task*/, Index /*slot*/) const {}
};

template <class E>
concept HasNumSlots = requires(const E& executor) {
  { executor.num_slots() } -> std::convertible_to<Index>;
};

// Executors may still have slots(), the former name of num_slots(), which a macro of Qt erases.
#pragma push_macro("slots")
#undef slots
template <class E>
concept HasSlots = requires(const E& executor) {
  { executor.slots() } -> std::convertible_to<Index>;
};

template <class E>
Index num_slots_of(const E& executor) {
  if constexpr (HasNumSlots<E>)
    return static_cast<Index>(executor.num_slots());
  else
    return static_cast<Index>(executor.slots());
}
#pragma pop_macro("slots")
/// \endcond

/// What runs the tasks of a call: `parallel_for(tasks, f)` calls f(task, slot) once for every task
/// in [0, tasks), in any order and on any thread, and returns when all are done. Two calls of f
/// that run at the same time have different slots in [0, num_slots()). Results depend neither on
/// num_slots() nor on the order. A call throws ShapeError unless num_slots() is from 1 to 2^20.
/// (An executor may instead have `slots()`, the former name, which Qt's headers define as a macro.)
/// Tasks run in the floating-point environment (rounding, flushing of subnormals, traps) of the
/// thread that makes the call; the executor's threads have their own again after each task.
/// \ingroup executors
template <class E>
concept Executor = (HasNumSlots<E> || HasSlots<E>)&&requires(const E& executor, Index tasks,
                                                             TaskArchetype task) {
  executor.parallel_for(tasks, task);
};

/// \cond INTERNAL
// Whether X runs on an E: on the host an Executor, on a GPU a CudaDevice.
template <class E, class X>
concept RunsOn = X::template runs_on<E>;
/// \endcond

/// Runs every task on the calling thread.
/// \ingroup executors
struct SerialExecutor {
  /// 1
  static constexpr Index num_slots() { return 1; }

  static constexpr bool keeps_floating_point = true;  ///< \private

  /// f(0, 0), f(1, 0), ...
  template <class Task>
  static void parallel_for(Index tasks, Task&& f) {
    for (Index task = 0; task < tasks; ++task) f(task, Index{0});
  }
};

/// \cond INTERNAL
// Runs tasks in order on one slot of another executor.
struct OneSlot {
  Index slot;

  static constexpr bool keeps_floating_point = true;
  static constexpr Index num_slots() { return 1; }
  template <class Task>
  void parallel_for(Index tasks, Task&& f) const {
    for (Index task = 0; task < tasks; ++task) f(task, slot);
  }
};

// Executors that themselves run tasks in the caller's floating-point environment.
template <class E>
concept KeepsFloatingPoint = E::keeps_floating_point;

// The floating-point modes of a thread: rounding, whether subnormals are flushed to zero, and which
// exceptions trap, but not which have been raised. A new thread copies those of the thread that
// starts it; later changes there do not reach it.
class FloatingPointModes {
 public:
  static FloatingPointModes of_this_thread() {
    FloatingPointModes modes;
#if defined(__x86_64__)
    __asm__ __volatile__("stmxcsr %0\n\tfnstcw %1"
                         : "=m"(modes.sse_), "=m"(modes.x87_)
                         :
                         : "memory");
    modes.sse_ &= ~raised_sse;
#elif defined(__aarch64__)
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(modes.control_) : : "memory");
#else
    std::fegetenv(&modes.all_);
#endif
    return modes;
  }

  // Sets the modes of this thread. No exception may be raised in it: it could trap.
  void apply() const {
#if defined(__x86_64__)
    __asm__ __volatile__("ldmxcsr %0\n\tfldcw %1" : : "m"(sse_), "m"(x87_) : "memory");
#elif defined(__aarch64__)
    __asm__ __volatile__("msr fpcr, %0" : : "r"(control_) : "memory");
#else
    std::fesetenv(&all_);
#endif
  }

#if defined(__x86_64__) || defined(__aarch64__)
  bool operator==(const FloatingPointModes&) const = default;
#else
  bool operator==(const FloatingPointModes&) const { return false; }  // a fenv_t cannot be compared
#endif

 private:
#if defined(__x86_64__)
  static constexpr std::uint32_t raised_sse = 0x3f;
  std::uint32_t sse_;
  std::uint16_t x87_;  // for long double
#elif defined(__aarch64__)
  std::uint64_t control_;
#else
  std::fenv_t all_;
#endif
};

// Sets other modes for this thread; the destructor restores its own environment.
class FloatingPointScope {
 public:
  explicit FloatingPointScope(const FloatingPointModes& modes)
      : changes_(!(FloatingPointModes::of_this_thread() == modes)) {
    if (!changes_) return;
#if defined(__x86_64__)
    __asm__ __volatile__("stmxcsr %0" : "=m"(own_sse_) : : "memory");
#endif
    std::feholdexcept(&own_);  // clears raised exceptions, which might trap under the new modes
    modes.apply();
  }
  FloatingPointScope(const FloatingPointScope&) = delete;
  FloatingPointScope& operator=(const FloatingPointScope&) = delete;
  ~FloatingPointScope() {
    if (!changes_) return;
    std::fesetenv(&own_);
#if defined(__x86_64__)  // on Windows fesetenv does not restore the flushing of subnormals
    __asm__ __volatile__("ldmxcsr %0" : : "m"(own_sse_) : "memory");
#endif
  }

 private:
  const bool changes_;
  std::fenv_t own_;
#if defined(__x86_64__)
  std::uint32_t own_sse_;
#endif
};

// A borrowed task of any type.
class TaskRef {
 public:
  template <class Task>
  requires(!std::same_as<Task, TaskRef>)
      TaskRef(const Task& task)  // NOLINT: stands in for the task
      : task_(&task), call_([](const void* object, Index index, Index slot) {
          (*static_cast<const Task*>(object))(index, slot);
        }) {}

  void operator()(Index index, Index slot) const { call_(task_, index, slot); }

 private:
  const void* task_;
  void (*call_)(const void*, Index, Index);
};

// A borrowed executor of any type, so that what uses it is compiled once for all of them.
class ExecutorRef {
 public:
  static constexpr Index max_slots = Index{1} << 20;  // each has memory

  template <Executor E>
  requires(!std::same_as<E, ExecutorRef>)
      ExecutorRef(const E& executor)  // NOLINT: stands in for the executor
      : executor_(&executor),
        slots_(num_slots_of(executor)),
        run_([](const void* object, Index tasks, TaskRef task) {
          const E& borrowed = *static_cast<const E*>(object);
          if constexpr (KeepsFloatingPoint<E>) {
            borrowed.parallel_for(tasks, task);
          } else {
            const auto modes = FloatingPointModes::of_this_thread();
            borrowed.parallel_for(tasks, [&modes, &task](Index index, Index slot) {
              const FloatingPointScope scope(modes);
              task(index, slot);
            });
          }
        }) {
    if (slots_ < 1 || slots_ > max_slots)
      throw ShapeError({"mhla: the executor has ", slots_, " slots but must have 1 to 2^20"});
  }

  Index num_slots() const { return slots_; }
  void parallel_for(Index tasks, TaskRef task) const { run_(executor_, tasks, task); }

 private:
  const void* executor_;
  Index slots_;
  void (*run_)(const void*, Index, TaskRef);
};
/// \endcond

MHLA_NAMESPACE_END
