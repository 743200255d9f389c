// SPDX-License-Identifier: MIT
// Several threads and one in turns, by the wall's clock: besides the columns of measurement.hpp
// (the ceiling is that of all threads), serial_ms and speedup.
#include <benchmark/benchmark.h>

#include "benchmarks.hpp"
#include "passes.hpp"

namespace bench {

void add_speedup(const Shape& shape, const NamedExecutor& executor, WorkingSet set) {
  for (const PassKind kind : {PassKind::forward, PassKind::backward, PassKind::both})
    add(name_of(kind) + "/" + shape.name + "/float/" + executor.name + suffix(set),
        [=](benchmark::State& state) {
          const Batch b = batch(shape, set, sizeof(float));
          Tensors<float>& t = tensors_of<float>(b);
          const auto calls = library_calls(b.shape, t, executor.executor);
          const mhla::SerialExecutor one_thread;
          const auto serial = library_calls(b.shape, t, mhla::ExecutorRef(one_thread));
          const Turns turns = take_turns<float>(state, executor.executor, Clock::wall,
                                                {run_of(kind, calls), run_of(kind, serial)});
          const Work amount = work_of(kind, b, sizeof(float), calls);
          report(state, turns, amount);
          state.counters["serial_ms"] = turns.median_seconds(1) / amount.items * 1e3;
          state.counters["speedup"] = turns.median_seconds(1) / turns.median_seconds(0);
        });
}

}  // namespace bench
