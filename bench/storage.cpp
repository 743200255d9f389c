// SPDX-License-Identifier: MIT
// 16-bit tensors and float ones in turns, batches of as many images or sequences; bfloat16_fast is
// bfloat16 with Precision::fast. Besides the columns of measurement.hpp, whose peak is float's:
//   float_ms, of_float   float's time; this one's over it
//   rms_y, rms_dq, rms_dk, rms_dv   root mean square error against double, whose inputs are the
//                        rounded ones and whose values have mean 1, over the root mean
//                        square of the exact result; Wan, which would take 4 GB, has none
#include <benchmark/benchmark.h>

#include <string>

#include "accuracy.hpp"
#include "benchmarks.hpp"
#include "passes.hpp"

namespace bench {

namespace {

template <class T>
void report_errors(benchmark::State& state, PassKind kind, const Shape& shape,
                   mhla::Precision precision) {
  ExactTwin<T> twin(shape);
  const mhla::SerialExecutor serial;
  const auto calls = library_calls(shape, twin.rounded, mhla::ExecutorRef(serial), precision);
  run_of(kind, calls)();
  if (kind == PassKind::forward) {
    state.counters["rms_y"] = rms_error(twin.rounded.y, twin.exact.y);
    return;
  }
  state.counters["rms_dq"] = rms_error(twin.rounded.dq, twin.exact.dq);
  state.counters["rms_dk"] = rms_error(twin.rounded.dk, twin.exact.dk);
  state.counters["rms_dv"] = rms_error(twin.rounded.dv, twin.exact.dv);
}

/// Of one thread every pass, with errors; of several those that float has.
template <class T>
void add_scalar(const Shape& shape, const std::string& scalar, const NamedExecutor& executor,
                mhla::Precision precision = mhla::Precision::exact) {
  const bool serial = executor.clock == Clock::thread;
  for (const PassKind kind : every_pass) {
    const bool saved = kind == PassKind::backward_saved || kind == PassKind::both_saved;
    if (saved && !serial) continue;
    const bool checked = serial && (kind == PassKind::forward || kind == PassKind::backward) &&
                         runs_in_every_scalar(shape);
    add(name_of(kind) + "/" + shape.name + "/" + scalar + "/" + executor.name,
        [=](benchmark::State& state) {
          const Batch b = batch(shape, WorkingSet::L3, sizeof(float));
          const auto calls = library_calls(shape, tensors_of<T>(b), executor.executor, precision);
          const auto in_float = library_calls(shape, tensors_of<float>(b), executor.executor);
          const Turns turns = take_turns<float>(state, executor.executor, executor.clock,
                                                {run_of(kind, calls), run_of(kind, in_float)});
          const Work amount = work_of(kind, b, sizeof(T), calls);
          report(state, turns, amount);
          state.counters["float_ms"] = turns.median_seconds(1) / amount.items * 1e3;
          state.counters["of_float"] = turns.median_seconds(0) / turns.median_seconds(1);
          if (checked) report_errors<T>(state, kind, shape, precision);
        });
  }
}

}  // namespace

void add_storage(const Shape& shape, const NamedExecutor& executor) {
  add_scalar<mhla::BFloat16>(shape, "bfloat16", executor);
  add_scalar<mhla::BFloat16>(shape, "bfloat16_fast", executor, mhla::Precision::fast);
  if (executor.clock == Clock::thread && runs_in_every_scalar(shape))
    add_scalar<mhla::Half>(shape, "half", executor);
}

}  // namespace bench
