// SPDX-License-Identifier: MIT
// One measurement: what is compared and bursts of the multiply-add ceiling take turns, and what is
// reported are medians and ratios of medians, so that a clock that changes or a neighbour that
// wakes up hits all alike.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <mhla/core/executor.hpp>
#include <string>
#include <utility>
#include <vector>

#include "clock.hpp"
#include "fma_peak.hpp"

namespace bench {

/// An executor that lives as long as the program, the name its results go under, and the clock it
/// is measured with.
struct NamedExecutor {
  std::string name;
  mhla::ExecutorRef executor;
  Clock clock;
};

/// What one run of the work does, summed over its `items` images or sequences.
struct Work {
  double flops;         ///< of the matrix products, as executed
  double useful_flops;  ///< the same without what is computed a second time
  double items;
  double tokens;
  double tensor_bytes;  ///< read and written at the least: every operand and result once
  double workspace_bytes = 0;
  double state_bytes = 0;  ///< of the saved forward state
};

/// What the contenders took, and the ceilings between their turns.
struct Turns {
  std::vector<std::vector<double>> seconds;
  std::vector<double> peaks;  // GFLOP/s

  double median_seconds(std::size_t contender) const { return median(seconds[contender]); }
};

/// However long a turn takes, a median is of at least three, and of five unless that takes seconds.
inline bool enough_turns(std::size_t turns, double seconds) {
  return turns >= 5 || (turns >= 3 && seconds > 2);
}

/// Contenders run one after the other, turn by turn, for as long as `state` says.
template <class T>
Turns take_turns(benchmark::State& state, const mhla::ExecutorRef& executor, Clock clock,
                 const std::vector<std::function<void()>>& contenders) {
  for (const auto& run : contenders) run();  // the first run touches fresh memory
  Turns turns{std::vector<std::vector<double>>(contenders.size()), {}};
  double since_peak = 1;
  double total = 0;
  const auto turn = [&] {
    if (since_peak > 2e-3) {  // an eighth of the time at the most goes to the ceiling
      turns.peaks.push_back(fma_peak<T>(executor, clock));
      since_peak = 0;
    }
    double sum = 0;
    for (std::size_t c = 0; c < contenders.size(); ++c) {
      const double begin = now_in_seconds(clock);
      contenders[c]();
      benchmark::ClobberMemory();
      turns.seconds[c].push_back(now_in_seconds(clock) - begin);
      sum += turns.seconds[c].back();
    }
    since_peak += sum;
    total += sum;
    return sum;
  };
  for (auto _ : state) state.SetIterationTime(turn());
  while (!enough_turns(turns.seconds[0].size(), total)) turn();
  return turns;
}

/// The columns of contender 0:
///   ms, noise           median milliseconds per image or sequence; (90 percent quantile - 10
///                       percent quantile) / median of the runs' times
///   GFLOP/s             FLOPs of the matrix products as executed, over the median
///   of_FMA_peak         GFLOP/s over the median of the ceiling measured between the runs
///   useful_GFLOP/s, useful_of_FMA_peak   the same without what is computed a second time
///   B/token             bytes that must be moved, per token of all heads
///   FMA_peak, turns     that ceiling in GFLOP/s; runs that the medians are of
///   workspace, state    bytes
inline void report(benchmark::State& state, const Turns& turns, const Work& amount) {
  const double seconds = turns.median_seconds(0);
  const double peak = median(turns.peaks) * 1e9;
  state.counters["ms"] = seconds / amount.items * 1e3;
  state.counters["noise"] = noise(turns.seconds[0]);
  state.counters["GFLOP/s"] = amount.flops / seconds * 1e-9;
  state.counters["of_FMA_peak"] = amount.flops / seconds / peak;
  state.counters["useful_GFLOP/s"] = amount.useful_flops / seconds * 1e-9;
  state.counters["useful_of_FMA_peak"] = amount.useful_flops / seconds / peak;
  state.counters["FMA_peak"] = peak * 1e-9;
  state.counters["B/token"] = amount.tensor_bytes / amount.tokens;
  state.counters["turns"] = static_cast<double>(turns.seconds[0].size());
  state.counters["workspace"] = benchmark::Counter(
      amount.workspace_bytes, benchmark::Counter::kDefaults, benchmark::Counter::kIs1024);
  if (amount.state_bytes > 0)
    state.counters["state"] = benchmark::Counter(amount.state_bytes, benchmark::Counter::kDefaults,
                                                 benchmark::Counter::kIs1024);
}

/// Registers a benchmark that keeps its own time.
template <class F>
auto* add(const std::string& name, F&& f) {
  return benchmark::RegisterBenchmark(name.c_str(), std::forward<F>(f))
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace bench
