// SPDX-License-Identifier: MIT
// Executors that do whatever the concept allows: tasks in any order on any slot, and real threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mhla/core/executor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace executors {

using mhla::Index;

/// One thread; tasks in a random order, each on a random one of `count` slots.
struct ShuffledExecutor {
  Index count;
  std::uint64_t seed = 1;

  Index num_slots() const { return count; }

  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    std::vector<Index> order(static_cast<std::size_t>(tasks));
    std::iota(order.begin(), order.end(), Index{0});
    for (Index i = tasks - 1; i > 0; --i) {
      const auto number = static_cast<std::uint64_t>(i);
      std::swap(order[static_cast<std::size_t>(i)],
                order[static_cast<std::size_t>(mhla::testing::random_index(seed, number, i + 1))]);
    }
    for (const Index i : order)
      task(i, mhla::testing::random_index(seed + 1, static_cast<std::uint64_t>(i), count));
  }
};

/// `count` threads that take the next task when they are done with one; a slot each.
struct ThreadExecutor {
  Index count;

  Index num_slots() const { return count; }

  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    std::atomic<Index> next{0};
    const auto work = [&](Index slot) {
      for (Index i = next++; i < tasks; i = next++) task(i, slot);
    };
    std::vector<std::thread> threads;
    for (Index slot = 1; slot < count; ++slot) threads.emplace_back(work, slot);
    work(0);
    for (std::thread& thread : threads) thread.join();
  }
};

/// `count` threads, each with tasks of its own whatever the others do: where two touch the same
/// memory, the thread sanitizer sees it in every run.
struct ApartExecutor {
  Index count;

  Index num_slots() const { return count; }

  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    const auto work = [&](Index slot) {
      for (Index i = slot; i < tasks; i += count) task(i, slot);
    };
    std::vector<std::thread> threads;
    for (Index slot = 1; slot < count; ++slot) threads.emplace_back(work, slot);
    work(0);
    for (std::thread& thread : threads) thread.join();
  }
};

static_assert(mhla::Executor<ShuffledExecutor>);
static_assert(mhla::Executor<ThreadExecutor>);

}  // namespace executors
