// SPDX-License-Identifier: MIT
// Forward and backward pass at the paper's shapes, beside what the machine could do and what a user
// would write with Eigen alone. Names are WHAT/SHAPE/SCALAR/EXECUTOR; for example
//   bench_attention --benchmark_filter='(forward|backward)/.*/float/serial'
//   bench_attention --benchmark_filter=-Wan --benchmark_out=attention.json
// Results are milliseconds per image or sequence; see measurement.hpp for the columns, and
// scaling() and decode() below for theirs. A batch is as large as makes q, k, v and y take 16 MB,
// so that they do not come from the L2 cache.
#define EIGEN_USE_THREADS
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <mhla/core/executor.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/decoding.hpp>
#include <mhla/eigen/thread_pool_executor.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mhla/policy/variant.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <thread>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "fma_peak.hpp"
#include "measurement.hpp"
#include "peers.hpp"
#include "shapes.hpp"

namespace {

using mhla::Index;
using mhla::testing::HostTensor;

constexpr Index working_set_bytes = Index{16} << 20;

template <class T>
struct Tensors {
  Index batch;
  HostTensor<T, 4> q, k, v, y;
  HostTensor<T, 3> mix;

  Tensors(const bench::Shape& shape)  // NOLINT: a vector of shapes becomes one of these
      : Tensors(shape, mhla::ceil_div(working_set_bytes,
                                      shape.elements() * static_cast<Index>(sizeof(T)))) {}
  Tensors(const bench::Shape& shape, Index items)
      : batch(items),
        q(random(1, shape, shape.key_dim)),
        k(random(2, shape, shape.key_dim)),
        v(random(3, shape, shape.value_dim)),
        y(batch, shape.heads, shape.tokens(), shape.value_dim),
        mix(1, shape.blocks(), shape.blocks()) {
    const mhla::Grid grid{{shape.grid[0], shape.grid[1], shape.grid[2]},
                          {shape.block[0], shape.block[1], shape.block[2]}};
    const bool causal = shape.model == bench::Model::language;
    mhla::initialize(mix.view(), grid,
                     {.transform = causal ? mhla::Transform::causal : mhla::Transform::linear});
  }

  HostTensor<T, 4> random(std::uint64_t seed, const bench::Shape& shape, Index dim) const {
    return mhla::testing::random_tensor<T>(mhla::testing::Uniform{-1, 1}, seed, batch, shape.heads,
                                           shape.tokens(), dim);
  }
  mhla::Shape shape() const { return mhla::shape_of(q.view(), k.view(), v.view(), mix.view()); }
};

bench::Work work(const bench::Shape& shape, Index batch, double flops_per_item, double tensors,
                 std::size_t element_bytes) {
  const auto items = static_cast<double>(batch);
  return {flops_per_item * items, items, items * static_cast<double>(shape.tokens()),
          tensors * static_cast<double>(element_bytes) * items};
}

template <class T, class Variant, class Executor>
void forward(benchmark::State& state, const Variant& attention, const bench::Shape& shape,
             const Executor& executor) {
  Tensors<T> t(shape);
  const mhla::Workspace workspace(mhla::forward_workspace_size<T>(attention, t.shape(), executor));
  auto amount =
      work(shape, t.batch, shape.forward_flops(), static_cast<double>(shape.elements()), sizeof(T));
  amount.workspace_bytes = static_cast<double>(workspace.size());
  bench::measure<T>(state, executor, amount, [&] {
    mhla::forward_into(attention, executor, t.q.view(), t.k.view(), t.v.view(), t.mix.view(),
                       t.y.view(), workspace);
  });
}

template <class T, class Variant, class Executor>
void backward(benchmark::State& state, const Variant& attention, const bench::Shape& shape,
              const Executor& executor) {
  Tensors<T> t(shape);
  const auto dy = t.random(4, shape, shape.value_dim);
  auto dq = HostTensor<T, 4>::like(t.q.view());
  auto dk = HostTensor<T, 4>::like(t.k.view());
  auto dv = HostTensor<T, 4>::like(t.v.view());
  auto dmix = HostTensor<T, 3>::like(t.mix.view());
  const mhla::Workspace workspace(mhla::backward_workspace_size<T>(attention, t.shape(), executor));
  // q, k, v, dy are read and dq, dk, dv written.
  const auto elements =
      static_cast<double>(shape.heads * shape.tokens() * (4 * shape.key_dim + 3 * shape.value_dim));
  auto amount = work(shape, t.batch, shape.backward_flops(), elements, sizeof(T));
  amount.workspace_bytes = static_cast<double>(workspace.size());
  bench::measure<T>(state, executor, amount, [&] {
    mhla::backward_into(attention, executor, t.q.view(), t.k.view(), t.v.view(), t.mix.view(),
                        dy.view(), {dq.view(), dk.view(), dv.view(), dmix.view()},
                        mhla::Update::overwrite, workspace);
  });
}

/// The released language model's.
auto language_attention(const bench::Shape& shape) {
  return mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                         mhla::HalfSplitRotary>{
      .feature_map = {.epsilon = 0},
      .blocks = {shape.block[2]},
      .scale = 1 / std::sqrt(static_cast<double>(shape.key_dim))};
}

/// Calls f with the variant that a shape is run with. A grid of three axes stands for images too,
/// their first axis being 1: geometries are lowered to the same tables.
template <class F>
void with_variant(const bench::Shape& shape, F&& f) {
  using mhla::Attention, mhla::Relu, mhla::Bidirectional, mhla::Blocks3D;
  const Blocks3D blocks{{shape.grid[0], shape.grid[1], shape.grid[2]},
                        {shape.block[0], shape.block[1], shape.block[2]}};
  switch (shape.model) {
    case bench::Model::key_sum:
      return f(Attention<Relu, Blocks3D>{.blocks = blocks});
    case bench::Model::product:
      return f(Attention<Relu, Blocks3D, Bidirectional, mhla::MixedProduct>{.blocks = blocks});
    case bench::Model::video:
      return f(Attention<Relu, Blocks3D, Bidirectional, mhla::Unnormalized, mhla::AxialRotary>{
          .blocks = blocks});
    case bench::Model::language:
      return f(language_attention(shape));
  }
}

/// How forward time grows with the number of tokens at a fixed number of blocks: all lengths take
/// turns. Counters: slope of log time against log tokens, and ms of the shortest and the longest.
template <class T, class Executor>
void scaling(benchmark::State& state, const std::vector<bench::Shape>& shapes,
             const Executor& executor) {
  std::vector<Tensors<T>> tensors(shapes.begin(), shapes.end());
  std::vector<mhla::Workspace> workspaces;
  for (std::size_t i = 0; i < shapes.size(); ++i)
    workspaces.emplace_back(mhla::forward_workspace_size<T>(language_attention(shapes[i]),
                                                            tensors[i].shape(), executor));
  std::vector<std::vector<double>> seconds(shapes.size());
  const auto run = [&](std::size_t i) {
    Tensors<T>& t = tensors[i];
    const double begin = bench::now_in_seconds(executor);
    mhla::forward_into(language_attention(shapes[i]), executor, t.q.view(), t.k.view(), t.v.view(),
                       t.mix.view(), t.y.view(), workspaces[i]);
    benchmark::ClobberMemory();
    return bench::now_in_seconds(executor) - begin;
  };
  for (std::size_t i = 0; i < shapes.size(); ++i) run(i);  // touches fresh memory
  for (auto _ : state) {
    double sum = 0;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const double taken = run(i);
      seconds[i].push_back(taken / static_cast<double>(tensors[i].batch));
      sum += taken;
    }
    state.SetIterationTime(sum);
  }
  std::vector<double> tokens;
  std::vector<double> medians;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    tokens.push_back(static_cast<double>(shapes[i].tokens()));
    medians.push_back(bench::quantile(seconds[i], 0.5));
  }
  state.counters["slope"] = bench::log_log_slope(tokens, medians);
  state.counters["ms_shortest"] = medians.front() * 1e3;
  state.counters["ms_longest"] = medians.back() * 1e3;
}

/// A sequence token by token from its first, again for every iteration. Counters, of the medians
/// over the iterations of every step but the first:
///   us_p50, us_p99   quantiles over the positions, in microseconds
///   p99/p50          what a step may take longer than another
///   us_begin, us_end median over the first and over the last eighth of the positions
///   us_boundary      median over the first tokens of blocks
///   tokens/s
template <class T, class Executor>
void decode(benchmark::State& state, const bench::Shape& shape, const Executor& executor) {
  const auto attention = language_attention(shape);
  const Tensors<T> t(shape, 1);
  const mhla::DecoderShape sizes{.heads = shape.heads,
                                 .kv_heads = shape.heads,
                                 .key_dim = shape.key_dim,
                                 .value_dim = shape.value_dim,
                                 .slots = executor.slots()};
  mhla::Decoder<std::remove_const_t<decltype(attention)>, T> decoder(attention, t.mix, sizes);
  HostTensor<T, 4> y(1, shape.heads, 1, shape.value_dim);
  const auto token = [](mhla::TensorView<const T, 4> view, Index position) {
    view.data += position * view.stride[2];
    view.extent[2] = 1;
    return view;
  };
  std::vector<std::vector<double>> runs(static_cast<std::size_t>(shape.tokens()));
  for (auto _ : state) {
    decoder.reset();
    double sum = 0;
    for (Index position = 0; position < shape.tokens(); ++position) {
      const auto q = token(t.q.view(), position);
      const auto k = token(t.k.view(), position);
      const auto v = token(t.v.view(), position);
      const double begin = bench::now_in_seconds(executor);
      decoder.step(executor, q, k, v, y.view());
      benchmark::ClobberMemory();
      const double seconds = bench::now_in_seconds(executor) - begin;
      runs[static_cast<std::size_t>(position)].push_back(seconds);
      sum += seconds;
    }
    state.SetIterationTime(sum);
  }
  std::vector<double> steps;
  std::vector<double> boundaries;
  double sum = 0;
  for (std::size_t position = 1; position < runs.size(); ++position) {
    steps.push_back(bench::quantile(runs[position], 0.5));
    sum += steps.back();
    if (position % static_cast<std::size_t>(shape.block[2]) == 0)
      boundaries.push_back(steps.back());
  }
  const auto eighth = static_cast<std::ptrdiff_t>(steps.size() / 8);
  const double p50 = bench::quantile(steps, 0.5);
  const double p99 = bench::quantile(steps, 0.99);
  state.counters["us_p50"] = p50 * 1e6;
  state.counters["us_p99"] = p99 * 1e6;
  state.counters["p99/p50"] = p99 / p50;
  state.counters["us_begin"] = bench::quantile({steps.begin(), steps.begin() + eighth}, 0.5) * 1e6;
  state.counters["us_end"] = bench::quantile({steps.end() - eighth, steps.end()}, 0.5) * 1e6;
  state.counters["us_boundary"] = bench::quantile(boundaries, 0.5) * 1e6;
  state.counters["tokens/s"] = static_cast<double>(steps.size()) / sum;
}

/// Calls f(q, k, v, y) for every head of every image.
template <class T, class F>
void for_each_head(Tensors<T>& t, F&& f) {
  for (Index n = 0; n < t.batch; ++n)
    for (Index h = 0; h < t.q.extent(1); ++h)
      f(bench::Rows<T>(&t.q(n, h, 0, 0), t.q.extent(2), t.q.extent(3)),
        bench::Rows<T>(&t.k(n, h, 0, 0), t.k.extent(2), t.k.extent(3)),
        bench::Rows<T>(&t.v(n, h, 0, 0), t.v.extent(2), t.v.extent(3)),
        bench::Result<T>(&t.y(n, h, 0, 0), t.y.extent(2), t.y.extent(3)));
}

template <class T>
void eigen_by_hand(benchmark::State& state, const bench::Shape& shape) {
  Tensors<T> t(shape);
  const mhla::Grid grid{{shape.grid[0], shape.grid[1], shape.grid[2]},
                        {shape.block[0], shape.block[1], shape.block[2]}};
  std::vector<std::vector<Eigen::Index>> tokens(static_cast<std::size_t>(shape.blocks()));
  for (Index token = 0; token < shape.tokens(); ++token)
    tokens[static_cast<std::size_t>(grid.block_of(token))].push_back(token);
  const bench::Matrix<T> mix = bench::Rows<T>(&t.mix(0, 0, 0), shape.blocks(), shape.blocks());
  const auto amount =
      work(shape, t.batch, shape.forward_flops(), static_cast<double>(shape.elements()), sizeof(T));
  bench::measure<T>(state, mhla::SerialExecutor{}, amount, [&] {
    for_each_head(t, [&](const auto& q, const auto& k, const auto& v, const auto& y) {
      bench::mhla_by_hand<T>(q, k, v, mix, tokens, y);
    });
  });
}

template <class T>
void global_linear(benchmark::State& state, const bench::Shape& shape) {
  Tensors<T> t(shape);
  const double flops = 2 * static_cast<double>(shape.tokens()) *
                       static_cast<double>(2 * shape.heads * shape.key_dim * shape.value_dim);
  const auto amount = work(shape, t.batch, flops, static_cast<double>(shape.elements()), sizeof(T));
  bench::measure<T>(state, mhla::SerialExecutor{}, amount, [&] {
    for_each_head(t, [&](const auto& q, const auto& k, const auto& v, const auto& y) {
      bench::global_linear_attention<T>(q, k, v, y);
    });
  });
}

template <class F>
auto* add(const std::string& name, F&& f) {
  return benchmark::RegisterBenchmark(name.c_str(), std::forward<F>(f))
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

/// What the machine could do; printed first.
template <class Executor>
void add_ceilings(const Executor& executor, const std::string& name) {
  const auto add_peak = [&](const std::string& scalar, auto zero) {
    using T = decltype(zero);
    add("ceiling/fma/" + scalar + "/" + name, [executor](benchmark::State& state) {
      std::vector<double> peaks;
      for (auto _ : state) {
        const double begin = bench::now_in_seconds(executor);
        peaks.push_back(bench::fma_peak<T>(executor));
        state.SetIterationTime(bench::now_in_seconds(executor) - begin);
      }
      state.counters["GFLOP/s"] = bench::quantile(peaks, 0.5);
      state.counters["noise"] =
          (bench::quantile(peaks, 0.9) - bench::quantile(peaks, 0.1)) / bench::quantile(peaks, 0.5);
    });
  };
  add_peak("float", 0.0f);
  add_peak("double", 0.0);
  add("ceiling/memory_copy/" + name, [executor](benchmark::State& state) {
    bench::MemoryCopy copy(std::size_t{512} << 20);
    std::vector<double> rates;
    for (auto _ : state) {
      const double begin = bench::now_in_seconds(executor);
      rates.push_back(copy.gigabytes_per_second(executor));
      state.SetIterationTime(bench::now_in_seconds(executor) - begin);
    }
    state.counters["GB/s"] = bench::quantile(rates, 0.5);
  });
}

template <class T, class Executor>
void add_attention(const bench::Shape& shape, const std::string& scalar, const Executor& executor,
                   const std::string& name) {
  const std::string suffix = "/" + shape.name + "/" + scalar + "/" + name;
  with_variant(shape, [&](const auto& attention) {
    add("forward" + suffix,
        [=](benchmark::State& state) { forward<T>(state, attention, shape, executor); });
    add("backward" + suffix,
        [=](benchmark::State& state) { backward<T>(state, attention, shape, executor); });
  });
}

template <class T>
void add_scalar(const bench::Shape& shape, const std::string& scalar,
                const mhla::ThreadPoolExecutor& pool) {
  add_attention<T>(shape, scalar, mhla::SerialExecutor{}, "serial");
  if (shape.model == bench::Model::key_sum) {
    const std::string suffix = "/" + shape.name + "/" + scalar + "/serial";
    add("eigen_by_hand" + suffix, [=](benchmark::State& s) { eigen_by_hand<T>(s, shape); });
    add("global_linear" + suffix, [=](benchmark::State& s) { global_linear<T>(s, shape); });
  }
  add_attention<T>(shape, scalar, pool, "pool");
}

/// What a language model asks of its sequences' length, in float.
template <class Executor>
void add_lengths(const Executor& executor, const std::string& name) {
  const std::vector<bench::Shape> shapes{bench::language(2048, 64), bench::language(8192, 256),
                                         bench::language(32768, 1024)};
  add("scaling/NLP_M32/float/" + name, [=](benchmark::State& state) {
    scaling<float>(state, shapes, executor);
  })->Iterations(5);
  for (const Index tokens : {2048, 32768}) {
    const bench::Shape shape = bench::language(tokens, 64);
    add("decode/" + shape.name + "/float/" + name, [=](benchmark::State& state) {
      decode<float>(state, shape, executor);
    })->Iterations(3);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Eigen::ThreadPool thread_pool(threads);
  const Eigen::ThreadPoolDevice device(&thread_pool, threads);
  const mhla::ThreadPoolExecutor pool(device);

  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("vectors", bench::vector_isa);
  benchmark::AddCustomContext("compiler", __VERSION__);
  benchmark::AddCustomContext("pool", std::to_string(threads) + " threads");

  add_ceilings(mhla::SerialExecutor{}, "serial");
  add_ceilings(pool, "pool");
  for (const bench::Shape& shape : bench::paper_shapes()) {
    add_scalar<float>(shape, "float", pool);
    add_scalar<double>(shape, "double", pool);
  }
  add_lengths(mhla::SerialExecutor{}, "serial");
  add_lengths(pool, "pool");
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
