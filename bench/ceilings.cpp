// SPDX-License-Identifier: MIT
// What the machine could do, for every number of threads; printed first.
#include <benchmark/benchmark.h>

#include <memory>
#include <mhla/core/scalar.hpp>
#include <mhla/cpu/kernels.hpp>
#include <string>
#include <vector>

#include "benchmarks.hpp"
#include "memory_bandwidth.hpp"

namespace bench {

namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 30;

template <class F>
void measure_ceiling(benchmark::State& state, const std::string& unit, F&& rate) {
  rate();  // touches fresh memory
  std::vector<double> rates;
  const auto turn = [&] {
    const double begin = now_in_seconds(Clock::wall);
    rates.push_back(rate());
    return now_in_seconds(Clock::wall) - begin;
  };
  for (auto _ : state) state.SetIterationTime(turn());
  while (!enough_turns(rates.size(), 0)) turn();
  state.counters[unit] = median(rates);
  state.counters["noise"] = noise(rates);
}

template <class T>
void add_peak(const std::string& scalar, const NamedExecutor& threads) {
  add("ceiling/fma/" + scalar + "/" + threads.name, [=](benchmark::State& state) {
    measure_ceiling(state, "GFLOP/s", [&] { return fma_peak<T>(threads.executor, threads.clock); });
  });
}

}  // namespace

void add_ceilings(const std::vector<NamedExecutor>& thread_counts) {
  for (const NamedExecutor& threads : thread_counts) add_peak<float>("float", threads);
  for (const NamedExecutor& threads : thread_counts) add_peak<double>("double", threads);
  if (mhla::cpu::pair_instruction() == mhla::cpu::PairInstruction::vdpbf16ps)
    for (const NamedExecutor& threads : thread_counts)
      add_peak<mhla::BFloat16>("bfloat16", threads);
  const auto buffers = std::make_shared<std::unique_ptr<MemoryBandwidth>>();
  const auto bandwidth = [buffers]() -> MemoryBandwidth& {
    if (*buffers == nullptr) *buffers = std::make_unique<MemoryBandwidth>(buffer_bytes);
    return **buffers;
  };
  for (const NamedExecutor& threads : thread_counts) {
    add("ceiling/memory_read/" + threads.name, [=](benchmark::State& state) {
      measure_ceiling(state, "GB/s",
                      [&] { return bandwidth().read(threads.executor, threads.clock); });
    });
    const bool last = &threads == &thread_counts.back();
    add("ceiling/memory_copy/" + threads.name, [=](benchmark::State& state) {
      measure_ceiling(state, "GB/s",
                      [&] { return bandwidth().copy(threads.executor, threads.clock); });
      if (last) buffers->reset();
    });
  }
}

}  // namespace bench
