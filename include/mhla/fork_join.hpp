// SPDX-License-Identifier: MIT
// An executor with threads of its own. It is the caller's object; the library makes no threads.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mhla/core/config.hpp>
#include <mhla/core/drawn_tasks.hpp>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

MHLA_NAMESPACE_BEGIN

/// \ingroup executors
/// Runs the tasks of a call on `threads` threads: the calling one, on slot 0, and threads - 1 that
/// live as long as the object. Tasks are drawn one by one, and run in the floating-point
/// environment of the call's thread; a call allocates nothing.
/// \code
/// const mhla::ForkJoin team(2);
/// mhla::forward_into(attention, team, q_view, k_view, v_view, mix_view, y_view, workspace);
/// y.device(mhla::ForkJoinDevice(team)) = attention(q, k, v, mix);
/// \endcode
/// May be called from any thread: concurrent calls run one after another, so a task must not wait
/// for another thread that calls the same object. A call from inside a task runs its tasks
/// serially, on the slot of that task. What a task throws reaches the caller once every thread has
/// left the call; tasks not yet begun are not run then.
///
/// After its last task a thread spins for `spin`, then sleeps until a call wakes it. With more
/// threads than the machine has it sleeps at once: spinning would take time from those that work.
class ForkJoin {
 public:
  /// Longer than what usually lies between two calls of a layer: a thread that sleeps takes 10 to
  /// 30 us to arrive (measured), as long as a small call takes.
  static constexpr std::chrono::microseconds default_spin{200};

  /// Hardware threads; at least 1.
  static int hardware_threads() {
    const unsigned count = std::thread::hardware_concurrency();
    return count == 0 ? 1 : static_cast<int>(count);
  }

  /// Starts the threads. \throws ShapeError if threads < 1, Error if one cannot be started,
  /// std::bad_alloc if there is no memory; those that have been started are joined first.
  explicit ForkJoin(int threads = hardware_threads(), std::chrono::microseconds spin = default_spin)
      : spin_(threads <= hardware_threads() ? (std::min)(spin, longest_spin) : spin.zero()) {
    if (threads < 1)
      throw ShapeError(
          {"mhla::ForkJoin: threads is ", threads, "; it must be at least 1, the calling thread"});
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    try {
      for (Index slot = 1; slot < threads; ++slot)
        workers_.emplace_back([this, slot] { work(slot); });
    } catch (const std::system_error& error) {
      dismiss();
      throw Error({"mhla::ForkJoin: thread ", workers_.size() + 1, " of ", threads - 1,
                   " could not be started: ", error.what()});
    } catch (...) {  // out of memory
      dismiss();
      throw;
    }
  }

  /// \cond INTERNAL
  MHLA_ANY_CALL(
      explicit ForkJoin,
      : ForkJoin(1) {
        static_assert(
            no_such_call<Given...>,
            "mhla: make a ForkJoin from (threads, spin): a number of threads and a "
            "std::chrono::microseconds, either of which may be left out; it is not copied");
      })
  /// \endcond
  ForkJoin(const ForkJoin&) = delete;
  ForkJoin& operator=(const ForkJoin&) = delete;

  /// Joins the threads; no call may be running.
  ~ForkJoin() { dismiss(); }

  static constexpr bool keeps_floating_point = true;  ///< \private

  /// Number of threads, the caller's included.
  Index num_slots() const { return static_cast<Index>(workers_.size()) + 1; }

  /// Runs task(0, slot), ..., task(tasks - 1, slot) and returns when all are done: see Executor.
  void parallel_for(Index tasks, TaskRef task) const {
    if (tasks <= 0) return;
    const Index own = slot_of_this_thread();
    if (own >= 0) return SerialExecutor::parallel_for(tasks, [&](Index i, Index) { task(i, own); });
    const Turn turn(*this);
    if (tasks == 1 || workers_.empty()) return SerialExecutor::parallel_for(tasks, task);
    DrawnTasks call{task, tasks};
    call_ = &call;
    epoch_.fetch_add(1);  // opens
    if (tasks > static_cast<Index>(workers_.size())) {
      epoch_.notify_all();
    } else {
      for (Index i = 1; i < tasks; ++i) epoch_.notify_one();
    }
    call.draw(0);
    epoch_.fetch_add(1);  // closes: threads that have not arrived are not waited for
    std::uint32_t inside = inside_;
    wait_until([&] { return (inside = inside_) == 0; }, [&] { inside_.wait(inside); });
    if (call.error) std::rethrow_exception(call.error);
  }

 private:
  // Longer than any program runs, and added to any time without overflow.
  static constexpr std::chrono::microseconds longest_spin = std::chrono::hours(24 * 365 * 10);

  // A counter that threads wait for. Where there is no futex (Windows, macOS), libstdc++ 12 loses a
  // notification between a waiting thread's look at the value and its sleep.
#if defined(__GLIBCXX__) && !defined(_GLIBCXX_HAVE_LINUX_FUTEX)
  class Counter : public std::atomic<std::uint32_t> {
   public:
    using std::atomic<std::uint32_t>::atomic;
    void wait(std::uint32_t seen) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return load() != seen; });
    }
    void notify_all() {
      { const std::lock_guard between_look_and_sleep(mutex_); }
      changed_.notify_all();
    }
    void notify_one() { notify_all(); }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
  };
#else
  using Counter = std::atomic<std::uint32_t>;
#endif

  // The loop of thread `slot`. It counts itself in before it checks whether the call is open, and
  // the caller closes before it checks who is inside: one of them sees the other, so the call
  // outlives every use of it.
  void work(Index slot) const {
    std::uint32_t done = 0;
    while (true) {
      std::uint32_t seen = epoch_;
      wait_until(
          [&] {
            seen = epoch_;
            return stop_ || (is_open(seen) && seen != done);
          },
          [&] { epoch_.wait(seen); });
      if (stop_) return;
      ++inside_;
      done = epoch_;
      if (is_open(done)) call_->draw(slot);
      if (--inside_ == 0) inside_.notify_one();
    }
  }

  static bool is_open(std::uint32_t epoch) { return epoch % 2 != 0; }

  // Spins for `spin_`, then sleeps.
  template <class Happened, class Sleep>
  void wait_until(const Happened& happened, const Sleep& fall_asleep) const {
    if (happened()) return;
    if (spin_.count() > 0) {
      constexpr int looks = 16;  // between two reads of the clock
      using Clock = std::chrono::steady_clock;
      const Clock::time_point end = Clock::now() + spin_;
      do {
        for (int i = 0; i < looks; ++i) {
          if (happened()) return;
          yield_core();
        }
      } while (Clock::now() < end);
    }
    while (!happened()) fall_asleep();
  }

  // Yields the core's units to its other hardware thread for a moment.
  static void yield_core() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
  }

  // The right to call, and which thread has it.
  class Turn {
   public:
    explicit Turn(const ForkJoin& team) : team_(team), lock_(team.turn_) {
      team_.caller_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { team_.caller_.store(std::thread::id(), std::memory_order_relaxed); }

   private:
    const ForkJoin& team_;
    std::lock_guard<std::mutex> lock_;
  };

  // The slot on which this thread runs a task; -1 if it runs none. Only this thread itself sets
  // `caller_` to its own id or clears it.
  Index slot_of_this_thread() const {
    const std::thread::id self = std::this_thread::get_id();
    if (caller_.load(std::memory_order_relaxed) == self) return 0;
    for (std::size_t i = 0; i < workers_.size(); ++i)
      if (workers_[i].get_id() == self) return static_cast<Index>(i) + 1;
    return -1;
  }

  void dismiss() {
    stop_ = true;
    epoch_.fetch_add(2);
    epoch_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  const std::chrono::microseconds spin_;
  std::vector<std::thread> workers_;
  mutable std::mutex turn_;
  mutable std::atomic<std::thread::id> caller_{};
  mutable DrawnTasks* call_ = nullptr;  // of an open epoch; on the stack of the caller
  // On separate cache lines: one is watched by all threads, the other written by all.
  alignas(DrawnTasks::cache_line) mutable Counter epoch_{0};  // odd while a call is open
  std::atomic<bool> stop_{false};
  alignas(DrawnTasks::cache_line) mutable Counter inside_{0};  // threads that may use call_
};

MHLA_NAMESPACE_END
