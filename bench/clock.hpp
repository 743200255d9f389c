// SPDX-License-Identifier: MIT
// The clocks that work is measured with, and quantiles of what they say.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <vector>

namespace bench {

/// `thread` is the calling thread's processor time, for work that it does alone: what other
/// programs take of a busy machine does not count. `wall` is for work that waits for other threads,
/// and for everything that is compared with such work.
enum class Clock { thread, wall };

inline double now_in_seconds(Clock clock) {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  if (clock == Clock::thread) {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
#else
  static_cast<void>(clock);
#endif
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The value that a share `part` of the values is below.
inline double quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

inline double median(const std::vector<double>& values) { return quantile(values, 0.5); }

/// How far the middle four fifths of the values are apart, in medians.
inline double noise(const std::vector<double>& values) {
  return (quantile(values, 0.9) - quantile(values, 0.1)) / median(values);
}

/// The exponent of y ~ x^exponent: the slope of the straight line that fits the logarithms best.
inline double log_log_slope(const std::vector<double>& x, const std::vector<double>& y) {
  const auto count = static_cast<double>(x.size());
  double sum_x = 0;
  double sum_y = 0;
  double sum_xx = 0;
  double sum_xy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double log_x = std::log(x[i]);
    const double log_y = std::log(y[i]);
    sum_x += log_x;
    sum_y += log_y;
    sum_xx += log_x * log_x;
    sum_xy += log_x * log_y;
  }
  return (count * sum_xy - sum_x * sum_y) / (count * sum_xx - sum_x * sum_x);
}

}  // namespace bench
