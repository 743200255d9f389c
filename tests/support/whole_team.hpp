// SPDX-License-Identifier: MIT
// A fork-join team of which every thread has started: what a thread allocates as it begins does not
// count as a call's.
#pragma once

#include <atomic>
#include <mhla/fork_join.hpp>
#include <thread>

/// Returns when all threads of the team have met.
inline void wait_for_whole_team(const mhla::ForkJoin& team) {
  std::atomic<mhla::Index> arrived{0};
  team.parallel_for(team.num_slots(), [&](mhla::Index, mhla::Index) {
    ++arrived;
    while (arrived < team.num_slots()) std::this_thread::yield();
  });
}
