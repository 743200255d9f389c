// SPDX-License-Identifier: MIT
// How long something takes.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

namespace quickstart {

/// Milliseconds of the fastest of several runs. A twentieth of a second is spent on them; what
/// takes longer runs twice, or once if it takes very long.
template <class F>
double milliseconds(F&& run) {
  using Clock = std::chrono::steady_clock;
  double fastest = std::numeric_limits<double>::infinity();
  double total = 0;
  for (int runs = 0; total < 50 || (runs < 2 && total < 500); ++runs) {
    const Clock::time_point start = Clock::now();
    run();
    const double time = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    fastest = std::min(fastest, time);
    total += time;
  }
  return fastest;
}

}  // namespace quickstart
