// SPDX-License-Identifier: MIT
// Forward and backward pass of one shape, alone: measurement.hpp lists the columns. backward_saved
// is the backward pass from the summaries that a forward pass has kept, and both_saved keeps and
// takes them.
#include "passes.hpp"

#include <benchmark/benchmark.h>

#include "benchmarks.hpp"

namespace bench {

template <class T>
void add_passes(const Shape& shape, const std::string& scalar, const NamedExecutor& executor,
                WorkingSet set) {
  for (const PassKind kind : every_pass)
    add(name_of(kind) + "/" + shape.name + "/" + scalar + "/" + executor.name + suffix(set),
        [=](benchmark::State& state) {
          const Batch b = batch(shape, set, sizeof(T));
          const auto calls = library_calls(b.shape, tensors_of<T>(b), executor.executor);
          const Turns turns =
              take_turns<T>(state, executor.executor, executor.clock, {run_of(kind, calls)});
          report(state, turns, work_of(kind, b, sizeof(T), calls));
        });
}

template void add_passes<float>(const Shape&, const std::string&, const NamedExecutor&, WorkingSet);
template void add_passes<double>(const Shape&, const std::string&, const NamedExecutor&,
                                 WorkingSet);

}  // namespace bench
