// SPDX-License-Identifier: MIT
// What a mixing costs against the length of a sequence, in blocks of 64 tokens: one head of 64 by
// 64 in float, on one thread.
//   bench_mixing --benchmark_filter='forward/causal'
// Names are PASS/SIGHT/MIXING/N: dense and recurrent (8 states) over a causal sequence, dense and
// separable (rank 2) over a square of 8 x 8 windows. decode/MIXING/N is a step of one token after
// N others. Columns: measurement.hpp; FLOPs are the forward pass's.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/decoding.hpp>
#include <mhla/diagnostics/cost.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <type_traits>

#include "measurement.hpp"

namespace {

using namespace mhla;
using mhla::testing::HostTensor;
using mhla::testing::random_tensor;

constexpr Index dim = 64;
constexpr Index block = 64;

template <class M>
using CausalVariant = Attention<Relu, Blocks1D, Causal, MixedKeySum, NoRotation, M>;
template <class M>
using ImageVariant = Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, NoRotation, M>;

template <class V>
V variant_of(Index tokens) {
  V attention{};
  if constexpr (V::GeometryType::rank == 1) {
    attention.blocks = {.block = block};
  } else {
    const Index side = std::lround(std::sqrt(static_cast<double>(tokens)));
    attention.blocks = {.grid = {side, tokens / side}, .block = {8, 8}};
  }
  if constexpr (requires { attention.mixing.states; }) attention.mixing.states = 8;
  if constexpr (requires { attention.mixing.rank; }) attention.mixing.rank = 2;
  return attention;
}

template <class V>
HostTensor<float, 3> mix_of(const V& attention, Index tokens) {
  const Grid grid = attention.blocks.grid_of(tokens);
  Index rows = grid.num_blocks();
  Index columns = rows;
  if constexpr (requires { attention.mixing.states; }) columns = attention.mixing.columns();
  if constexpr (requires { attention.mixing.rank; }) {
    rows = attention.mixing.rank;
    columns = attention.mixing.columns(MixingLayout::of(2, grid, grid, Sight::all));
  }
  // Decays below 1, so that no state grows without bound.
  return random_tensor<float>(mhla::testing::Uniform{0.1f, 0.9f}, 4, 1, rows, columns);
}

HostTensor<float, 4> tokens_of(std::uint64_t seed, Index tokens) {
  return random_tensor<float>(mhla::testing::Normal{}, seed, 1, 1, tokens, dim);
}

template <class V>
void measure_pass(benchmark::State& state, Index tokens, bool backward) {
  const V attention = variant_of<V>(tokens);
  const SerialExecutor serial;
  const auto q = tokens_of(1, tokens), k = tokens_of(2, tokens), v = tokens_of(3, tokens);
  const auto mix = mix_of(attention, tokens);
  auto y = v, dq = q, dk = k, dv = v;
  auto dmix = mix;
  const Shape shape = shape_of(q.view(), k.view(), v.view(), mix.view());
  const Workspace workspace(backward ? backward_workspace_size<float>(attention, shape, serial)
                                     : forward_workspace_size<float>(attention, shape, serial));
  const auto run = [&] {
    if (backward) {
      backward_into(attention, serial, q.view(), k, v, mix, v,
                    {dq.view(), dk.view(), dv.view(), dmix.view()}, Update::overwrite, workspace);
    } else {
      forward_into(attention, serial, q, k, v, mix, y.view(), workspace);
    }
  };
  const double flops = static_cast<double>(diagnostics::forward_cost(attention, shape).flops());
  const auto number = static_cast<double>(tokens);
  bench::report(state, bench::take_turns<float>(state, serial, bench::Clock::thread, {run}),
                {flops, flops, 1, number, number * dim * 4 * sizeof(float),
                 static_cast<double>(workspace.size())});
}

// A step of one token, over whole blocks of steps from `tokens` on.
template <class V>
void measure_step(benchmark::State& state, Index tokens) {
  const V attention = variant_of<V>(tokens);
  const auto mix = mix_of(attention, tokens + 64 * block);
  const auto q = tokens_of(1, tokens), k = tokens_of(2, tokens), v = tokens_of(3, tokens);
  auto y = v;
  Decoder<V, float> decoder(attention, mix, {.key_dim = dim, .value_dim = dim});
  decoder.prefill(0, q, k, v, y.view());
  const Decoder<V, float> begin = decoder;
  const auto token = tokens_of(5, 1);
  auto out = token;
  const auto run = [&] {
    if (decoder.position(0) + block > decoder.capacity()) decoder = begin;
    for (Index t = 0; t < block; ++t) decoder.step(token, token, token, out.view());
  };
  const double flops = 2.0 * block * dim * dim;  // of the readout alone
  bench::report(state,
                bench::take_turns<float>(state, SerialExecutor{}, bench::Clock::thread, {run}),
                {flops, flops, static_cast<double>(block), static_cast<double>(block),
                 static_cast<double>(block * dim) * 4 * sizeof(float), 0,
                 static_cast<double>(decoder.saved_size())});
}

template <class V>
void add_passes(const std::string& name) {
  for (const bool backward : {false, true})
    for (Index tokens = 4096; tokens <= 262144; tokens *= 4)
      bench::add((backward ? "backward/" : "forward/") + name + "/" + std::to_string(tokens),
                 [=](benchmark::State& state) { measure_pass<V>(state, tokens, backward); });
}
template <class V>
void add_steps(const std::string& name) {
  for (const Index tokens : {2048, 32768})
    bench::add("decode/" + name + "/" + std::to_string(tokens),
               [=](benchmark::State& state) { measure_step<V>(state, tokens); });
}

}  // namespace

int main(int argc, char** argv) {
  add_passes<CausalVariant<DenseMixing>>("causal/dense");
  add_passes<CausalVariant<RecurrentMixing>>("causal/recurrent");
  add_passes<ImageVariant<DenseMixing>>("image/dense");
  add_passes<ImageVariant<SeparableMixing>>("image/separable");
  add_steps<CausalVariant<DenseMixing>>("dense");
  add_steps<CausalVariant<RecurrentMixing>>("recurrent");
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
