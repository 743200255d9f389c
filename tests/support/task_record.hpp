// SPDX-License-Identifier: MIT
// What tests ask of every executor: each task runs once, on slots of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mhla/core/index.hpp>
#include <vector>

using mhla::Index;

// Sees on which slots tasks run at the same time, and how often each task does.
class TaskRecord {
 public:
  TaskRecord(Index tasks, Index num_slots)
      : runs_(static_cast<std::size_t>(tasks)), busy_(static_cast<std::size_t>(num_slots)) {}

  void run(Index task, Index slot) {
    if (task < 0 || task >= static_cast<Index>(runs_.size()) || slot < 0 ||
        slot >= static_cast<Index>(busy_.size())) {
      ++foreign_;
      return;
    }
    auto& mine = busy_[static_cast<std::size_t>(slot)];
    if (mine.exchange(1) != 0) ++collisions_;
    ++runs_[static_cast<std::size_t>(task)];
    mine = 0;
  }

  /// Whether every task has run `times` times, on slots that there are, each by one thread.
  bool in_order(int times = 1) const {
    return foreign_ == 0 && collisions_ == 0 &&
           std::all_of(runs_.begin(), runs_.end(), [&](const auto& n) { return n == times; });
  }

 private:
  std::vector<std::atomic<int>> runs_;
  std::vector<std::atomic<int>> busy_;
  std::atomic<int> foreign_{0};
  std::atomic<int> collisions_{0};
};
