// SPDX-License-Identifier: MIT
// What a language model asks: decoding token by token, and how forward time grows with the length.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <mhla/decoding.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "accuracy.hpp"
#include "benchmarks.hpp"
#include "library.hpp"
#include "variants.hpp"

namespace bench {

namespace {

template <class View>
View one_token(View view, Index position) {
  view.data += position * view.stride[2];
  view.extent[2] = 1;
  return view;
}

/// A sequence token by token from its first, again for every iteration. Counters, of the medians
/// over the iterations of every step but the first:
///   us_p50, us_p99   quantiles over the positions, in microseconds
///   p99/p50          what a step may take longer than another
///   us_begin, us_end median over the first and over the last eighth of the positions
///   us_boundary      median over the first tokens of blocks
///   tokens/s
///   rms_y            root mean square error against the forward pass in double
template <class T>
void decode(benchmark::State& state, const Shape& shape, const NamedExecutor& executor) {
  const auto attention = language_attention(shape);
  ExactTwin<T> twin(shape);
  Tensors<T>& t = twin.rounded;
  const mhla::DecoderShape sizes{.heads = shape.heads,
                                 .kv_heads = shape.heads,
                                 .key_dim = shape.key_dim,
                                 .value_dim = shape.value_dim,
                                 .num_slots = executor.executor.num_slots()};
  mhla::Decoder<std::remove_const_t<decltype(attention)>, T> decoder(attention, t.mix, sizes);
  std::vector<std::vector<double>> runs(static_cast<std::size_t>(shape.tokens()));
  for (auto _ : state) {
    decoder.reset();
    double sum = 0;
    for (Index position = 0; position < shape.tokens(); ++position) {
      const mhla::TensorView<const T, 4> q = one_token(t.q.view(), position);
      const mhla::TensorView<const T, 4> k = one_token(t.k.view(), position);
      const mhla::TensorView<const T, 4> v = one_token(t.v.view(), position);
      const auto y = one_token(t.y.view(), position);
      const double begin = now_in_seconds(executor.clock);
      decoder.step(executor.executor, q, k, v, y);
      benchmark::ClobberMemory();
      const double seconds = now_in_seconds(executor.clock) - begin;
      runs[static_cast<std::size_t>(position)].push_back(seconds);
      sum += seconds;
    }
    state.SetIterationTime(sum);
  }
  std::vector<double> steps;
  std::vector<double> boundaries;
  double sum = 0;
  for (std::size_t position = 1; position < runs.size(); ++position) {
    steps.push_back(median(runs[position]));
    sum += steps.back();
    if (position % static_cast<std::size_t>(shape.block[2]) == 0)
      boundaries.push_back(steps.back());
  }
  const auto eighth = static_cast<std::ptrdiff_t>(steps.size() / 8);
  const double p50 = median(steps);
  const double p99 = quantile(steps, 0.99);
  state.counters["us_p50"] = p50 * 1e6;
  state.counters["us_p99"] = p99 * 1e6;
  state.counters["p99/p50"] = p99 / p50;
  state.counters["us_begin"] = median({steps.begin(), steps.begin() + eighth}) * 1e6;
  state.counters["us_end"] = median({steps.end() - eighth, steps.end()}) * 1e6;
  state.counters["us_boundary"] = median(boundaries) * 1e6;
  state.counters["tokens/s"] = static_cast<double>(steps.size()) / sum;
  state.counters["rms_y"] = rms_error(t.y, twin.exact.y);
}

template <class T>
void add_scalar(const Shape& shape, const std::string& scalar, const NamedExecutor& executor) {
  add("decode/" + shape.name + "/" + scalar + "/" + executor.name, [=](benchmark::State& state) {
    decode<T>(state, shape, executor);
  })->Iterations(3);
}

/// How forward time grows with the number of tokens at a fixed number of blocks: all lengths take
/// turns. Counters: slope of log time against log tokens, and ms of the shortest and the longest.
void scaling(benchmark::State& state, const NamedExecutor& executor) {
  const std::vector<Shape> shapes{language(2048, 64), language(8192, 256), language(32768, 1024)};
  std::vector<Batch> batches;
  std::vector<Tensors<float>> tensors;
  tensors.reserve(shapes.size());  // calls keep their addresses
  std::vector<std::function<void()>> contenders;
  for (const Shape& shape : shapes) {
    batches.push_back(batch(shape, WorkingSet::L3, sizeof(float)));
    tensors.emplace_back(batches.back());
    contenders.push_back(library_calls(shape, tensors.back(), executor.executor).forward);
  }
  const Turns turns = take_turns<float>(state, executor.executor, executor.clock, contenders);
  std::vector<double> tokens;
  std::vector<double> medians;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    tokens.push_back(static_cast<double>(shapes[i].tokens()));
    medians.push_back(turns.median_seconds(i) / static_cast<double>(batches[i].items));
  }
  state.counters["slope"] = log_log_slope(tokens, medians);
  state.counters["ms_shortest"] = medians.front() * 1e3;
  state.counters["ms_longest"] = medians.back() * 1e3;
}

}  // namespace

void add_decoding(const Shape& shape, const NamedExecutor& executor) {
  add_scalar<float>(shape, "float", executor);
  add_scalar<mhla::BFloat16>(shape, "bfloat16", executor);
  add_scalar<mhla::Half>(shape, "half", executor);
}

void add_lengths(const NamedExecutor& executor) {
  add("scaling/NLP_M32/float/" + executor.name,
      [=](benchmark::State& state) { scaling(state, executor); });
}

}  // namespace bench
