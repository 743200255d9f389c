// SPDX-License-Identifier: MIT
// One measurement: runs of the work and bursts of the multiply-add ceiling take turns, and what is
// reported is a ratio of medians, so that a clock that changes or a neighbour that wakes up hits
// both alike.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "fma_peak.hpp"

namespace bench {

/// The value that a share `part` of the values is below.
inline double quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
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

/// What one run of the work does, summed over its `items` images or sequences.
struct Work {
  double flops;
  double items;
  double tokens;
  double tensor_bytes;  ///< read and written at the least: every operand and result once
  double workspace_bytes = 0;
};

/// Runs `work` for as long as `state` says. Counters:
///   ms           median milliseconds per image or sequence
///   noise        (90 percent quantile - 10 percent quantile) / median of the runs' times
///   GFLOP/s      FLOPs of the matrix products, over the median
///   of_FMA_peak  GFLOP/s over the median of the ceiling measured between the runs
///   B/token      bytes that must be moved, per token of all heads
///   workspace    bytes
template <class T, class Executor, class F>
void measure(benchmark::State& state, const Executor& executor, const Work& amount, F&& work) {
  work();  // the first run touches fresh memory
  std::vector<double> seconds;
  std::vector<double> peaks;
  double since_peak = 1;
  for (auto _ : state) {
    if (since_peak > 2e-3) {  // an eighth of the time at the most goes to the ceiling
      peaks.push_back(fma_peak<T>(executor));
      since_peak = 0;
    }
    const double begin = now_in_seconds(executor);
    work();
    benchmark::ClobberMemory();
    seconds.push_back(now_in_seconds(executor) - begin);
    since_peak += seconds.back();
    state.SetIterationTime(seconds.back());
  }
  const double median = quantile(seconds, 0.5);
  const double gflops = amount.flops / median * 1e-9;
  state.counters["ms"] = median / amount.items * 1e3;
  state.counters["noise"] = (quantile(seconds, 0.9) - quantile(seconds, 0.1)) / median;
  state.counters["GFLOP/s"] = gflops;
  state.counters["of_FMA_peak"] = gflops / quantile(peaks, 0.5);
  state.counters["B/token"] = amount.tensor_bytes / amount.tokens;
  state.counters["workspace"] = benchmark::Counter(
      amount.workspace_bytes, benchmark::Counter::kDefaults, benchmark::Counter::kIs1024);
}

}  // namespace bench
