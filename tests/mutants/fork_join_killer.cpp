// SPDX-License-Identifier: MIT
// A fork-join team, and the device that lends it to Eigen: every task once, each thread on its
// slot, errors, nested calls. What goes wrong between threads does so every time here, because the
// tasks wait for each other.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mhla/core/executor.hpp>
#include <mhla/eigen/fork_join_device.hpp>
#include <mhla/fork_join.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "killer.hpp"

namespace {

using killer::expect;
using mhla::ForkJoin;
using mhla::Index;

using Counts = std::vector<std::atomic<int>>;

bool all(const Counts& counts, int value) {
  for (const auto& count : counts)
    if (count != value) return false;
  return true;
}

// Ends when `awaited` tasks have come here, or, where they never do, after a while.
class Meeting {
 public:
  explicit Meeting(int awaited) : awaited_(awaited) {}

  void attend() {
    ++arrived_;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (arrived_ < awaited_) {
      expect(std::chrono::steady_clock::now() < end, "every thread takes part");
      std::this_thread::yield();
    }
  }

 private:
  const int awaited_;
  std::atomic<int> arrived_{0};
};

void check_tasks() {
  for (const int threads : {1, 3}) {
    const ForkJoin team(threads);
    for (const Index tasks : {0, 1, 2, 3, 10}) {
      Counts runs(static_cast<std::size_t>(tasks));
      team.parallel_for(tasks, [&](Index task, Index) { ++runs[static_cast<std::size_t>(task)]; });
      expect(all(runs, 1), "every task is run");
    }
  }
  const ForkJoin team(3);
  Counts runs(3);
  Counts slots(3);
  Meeting meeting(3);
  team.parallel_for(3, [&](Index task, Index slot) {
    ++runs[static_cast<std::size_t>(task)];
    ++slots[static_cast<std::size_t>(slot)];
    meeting.attend();
  });
  expect(all(runs, 1), "every task is run once");
  expect(all(slots, 1), "each thread has its slot");
}

void check_end() {
  const ForkJoin team(2);
  Meeting meeting(2);
  std::atomic<int> ended{0};
  team.parallel_for(2, [&](Index, Index slot) {
    meeting.attend();
    if (slot != 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ++ended;
  });
  expect(ended == 2, "a call returns when all tasks have ended");
}

void check_errors() {
  const auto failing = [](Index task, Index) {
    if (task == 7) throw std::runtime_error("7");
  };
  for (const int threads : {1, 3})
    killer::expect_throw<std::runtime_error>([&] { ForkJoin(threads).parallel_for(10, failing); },
                                             "a task that fails");
}

void check_nested() {
  const ForkJoin team(3);
  Meeting meeting(3);
  std::atomic<int> moved{0};
  team.parallel_for(3, [&](Index, Index slot) {
    meeting.attend();
    team.parallel_for(4, [&](Index, Index inner) { moved += inner != slot; });
  });
  expect(moved == 0, "a call from inside a task stays on its slot");
}

void check_sleepers() {
  const ForkJoin team(3, std::chrono::microseconds{0});
  for (const int tasks : {2, 3, 2}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until they do
    Meeting meeting(tasks);
    team.parallel_for(tasks, [&](Index, Index) { meeting.attend(); });
  }
}

void check_device() {
  const ForkJoin team(3);
  const mhla::ForkJoinDevice device(team);
  const auto executor = executor_for(device);
  expect(executor.slots() == 3, "the device has the slots of its team");
  Meeting meeting(3);
  executor.parallel_for(3, [&](Index, Index) { meeting.attend(); });

  // No packet divides 37, and what follows is not the expression's.
  constexpr Index size = 37;
  Eigen::Tensor<float, 1> a(size), memory(size + 16);
  a.setRandom();
  memory.setConstant(-1.f);
  Eigen::TensorMap<Eigen::Tensor<float, 1>> sum(memory.data(), size);
  sum.device(device) = a + a;
  for (Index i = 0; i < memory.size(); ++i)
    expect(memory(i) == (i < size ? 2 * a(i) : -1.f), "an expression on the device");
}

}  // namespace

int main() {
  killer::run([] {
    check_tasks();
    check_end();
    check_errors();
    check_nested();
    check_sleepers();
    check_device();
  });
}
