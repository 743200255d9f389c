// SPDX-License-Identifier: MIT
// What a fork and a join cost, in microseconds per call: tasks that do nothing, then tasks of some
// microseconds, whose time beside the serial one says from which size on sharing out pays.
//   bench_executors --benchmark_filter='/2 threads'
// Names are EXECUTOR/TASKS x LENGTH/THREADS/PAUSE. Between two calls the caller works for PAUSE,
// which is not counted: with 0 the team's threads are still awake, with 500 us they sleep.
// "sleeping at once" is the team without its spin. Counters are quantiles of the calls' times.
#define EIGEN_USE_THREADS
#include <benchmark/benchmark.h>

#include <chrono>
#include <mhla/core/executor.hpp>
#include <mhla/eigen/thread_pool_executor.hpp>
#include <mhla/fork_join.hpp>
#include <string>
#include <thread>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "measurement.hpp"

namespace {

using mhla::Index;
using std::chrono::microseconds;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Keeps a core busy by the clock on the wall.
void work_for(double seconds) {
  if (seconds == 0) return;
  for (const Clock::time_point begin = Clock::now(); seconds_since(begin) < seconds;) {
  }
}

struct Load {
  Index tasks;
  double task_us;
  double pause_us;

  std::string name(const std::string& executor, Index threads) const {
    const auto number = [](double us) { return std::to_string(static_cast<int>(us)) + " us"; };
    return executor + "/" + std::to_string(tasks) + " tasks of " + number(task_us) + "/" +
           std::to_string(threads) + (threads == 1 ? " thread" : " threads") + "/pause " +
           number(pause_us);
  }
};

template <class Executor>
void fork_and_join(benchmark::State& state, const Executor& executor, const Load& load) {
  const auto task = [&](Index, Index) { work_for(load.task_us * 1e-6); };
  executor.parallel_for(load.tasks, task);  // the first call starts what has not started yet
  std::vector<double> seconds;
  for (auto _ : state) {
    work_for(load.pause_us * 1e-6);
    const Clock::time_point begin = Clock::now();
    executor.parallel_for(load.tasks, task);
    seconds.push_back(seconds_since(begin));
    state.SetIterationTime(seconds.back());
  }
  state.counters["us_p10"] = bench::quantile(seconds, 0.1) * 1e6;
  state.counters["us_p50"] = bench::quantile(seconds, 0.5) * 1e6;
  state.counters["us_p90"] = bench::quantile(seconds, 0.9) * 1e6;
}

template <class Executor>
void add(const std::string& name, const Executor& executor, const Load& load) {
  benchmark::RegisterBenchmark(
      load.name(name, static_cast<Index>(executor.num_slots())).c_str(),
      [&executor, load](benchmark::State& state) { fork_and_join(state, executor, load); })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(1000);
}

}  // namespace

int main(int argc, char** argv) {
  const mhla::SerialExecutor serial;
  const int threads = mhla::ForkJoin::hardware_threads();
  const mhla::ForkJoin team(threads);
  const mhla::ForkJoin sleepers(threads, microseconds{0});
  Eigen::ThreadPool pool(threads);
  const Eigen::ThreadPoolDevice device(&pool, threads);
  const mhla::ThreadPoolExecutor eigen(device);
  for (const double pause_us : {0.0, 20.0, 500.0})
    for (const double task_us : {0.0, 5.0, 50.0}) {
      const Load load{2 * threads, task_us, pause_us};
      add("serial", serial, load);
      add("fork-join", team, load);
      add("fork-join, sleeping at once", sleepers, load);
      add("Eigen's pool", eigen, load);
    }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
