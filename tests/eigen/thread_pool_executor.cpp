// SPDX-License-Identifier: MIT
// The executor over an Eigen thread pool.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mhla/eigen/thread_pool_executor.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/floating_point.hpp"

using namespace mhla;

static_assert(mhla::Executor<ThreadPoolExecutor>);

TEST_CASE("executor: a device has its executor", "[eigen]") {
  CHECK(std::is_same_v<decltype(executor_for(Eigen::DefaultDevice())), SerialExecutor>);
  Eigen::ThreadPool pool(4);
  CHECK(executor_for(Eigen::ThreadPoolDevice(&pool, 4)).num_slots() == 4);
  CHECK(executor_for(Eigen::ThreadPoolDevice(&pool, 2)).num_slots() == 2);
  CHECK(executor_for(Eigen::ThreadPoolDevice(&pool, 1)).num_slots() == 1);
  CHECK(executor_for(Eigen::ThreadPoolDevice(&pool, 0)).num_slots() == 1);
}

TEST_CASE("executor: a pool's tasks run in the caller's floating-point environment", "[eigen]") {
  Eigen::ThreadPool pool(3);
  const Eigen::ThreadPoolDevice device(&pool, 3);
  for (const auto setting : floating_point::settings()) {
    CAPTURE(static_cast<int>(setting));
    const floating_point::Scope scope(setting);
    std::vector<floating_point::Traits> seen(3);
    std::atomic<int> arrived{0};
    executor_for(device).parallel_for(3, [&](Index task, Index) {
      seen[static_cast<std::size_t>(task)] = floating_point::traits();
      ++arrived;
      while (arrived < 3) std::this_thread::yield();
    });
    for (const auto& traits : seen) CHECK(traits == floating_point::traits());
  }
}

TEST_CASE("executor: what a task throws reaches the caller", "[eigen]") {
  Eigen::ThreadPool pool(3);
  const Eigen::ThreadPoolDevice device(&pool, 3);
  const ThreadPoolExecutor executor = executor_for(device);
  for (const Index failing : {0, 1, 50, 99}) {
    std::string message;
    try {
      executor.parallel_for(100, [&](Index task, Index) {
        if (task == failing) throw std::runtime_error("task " + std::to_string(task));
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    CHECK(message == "task " + std::to_string(failing));
  }
  CHECK_THROWS_AS(
      executor.parallel_for(100, [](Index, Index) { throw std::runtime_error("every task"); }),
      std::runtime_error);
  std::atomic<int> runs{0};
  executor.parallel_for(100, [&](Index, Index) { ++runs; });
  CHECK(runs == 100);
}
