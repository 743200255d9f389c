// SPDX-License-Identifier: MIT
// The paths of the CPU against softmax attention in tiles, one head of 64 in float on one core:
// every length and every number of tokens in a block that is a power of two. As CSV, medians in
// microseconds; calls are planned.
//   bench_paths [--most TOKENS] [--least TOKENS] [--turns TURNS]
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <mhla/attention.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <vector>

#include "clock.hpp"
#include "tiled_softmax.hpp"

namespace {

using mhla::Index;
using mhla::testing::HostTensor;
constexpr Index dim = 64;
using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

struct Options {
  Index least = 16;
  Index most = 4096;
  std::size_t turns = 7;
};

/// Operands, results and gradients of one head.
struct Head {
  HostTensor<float, 4> q, k, v, dy, y, dq, dk, dv;

  explicit Head(Index tokens) {
    for (auto* tensor : {&q, &k, &v, &dy, &y, &dq, &dk, &dv})
      *tensor = HostTensor<float, 4>(1, 1, tokens, dim);
    std::uint64_t seed = 1;
    for (auto* tensor : {&q, &k, &v, &dy})
      mhla::testing::fill_random(mhla::testing::Normal{}, seed++, tensor->view());
  }
};

/// What is timed: a forward pass, and one with the backward pass after it.
struct Contender {
  std::string name;
  std::function<void()> forward;
  std::function<void()> both;
};

Contender softmax(Head& of) {
  using bench::Rows;
  struct Memory {
    bench::SoftmaxTile<float> tile;
    bench::Matrix<float> dk, dv;
  };
  const auto memory = std::make_shared<Memory>();
  const auto rows = [](const HostTensor<float, 4>& t) {
    return Rows<float>(&t(0, 0, 0, 0), t.extent(2), dim);
  };
  const auto run = [=, &of](bool backward) {
    const Index tokens = of.q.extent(2);
    if (backward) {
      memory->dk.setZero(tokens, dim);
      memory->dv.setZero(tokens, dim);
    }
    for (Index first = 0; first < tokens; first += bench::softmax_query_tile) {
      const Index count = std::min<Index>(bench::softmax_query_tile, tokens - first);
      bench::softmax_query_rows<float>(rows(of.q), rows(of.k), rows(of.v), first, false,
                                       memory->tile, {&of.y(0, 0, first, 0), count, dim});
      if (backward)
        bench::softmax_query_rows_gradient<float>(
            rows(of.q), rows(of.k), rows(of.v), rows(of.y), rows(of.dy), first, memory->tile,
            {&of.dq(0, 0, first, 0), count, dim}, memory->dk, memory->dv);
    }
    if (!backward) return;
    std::copy_n(memory->dk.data(), tokens * dim, &of.dk(0, 0, 0, 0));
    std::copy_n(memory->dv.data(), tokens * dim, &of.dv(0, 0, 0, 0));
  };
  return {"softmax", [=] { run(false); }, [=] { run(true); }};
}

Contender mhla_call(Head& of, Index block, mhla::Path path, const std::string& name) {
  const Attention attention{.blocks = {.block = block}, .path = path};
  const Index blocks = mhla::ceil_div(of.q.extent(2), block);
  struct Memory {
    HostTensor<float, 3> mix, dmix;
    mhla::CpuPlan<Attention, float> plan;
  };
  HostTensor<float, 3> mix(1, blocks, blocks);
  mhla::initialize(mix.view(), attention);
  const mhla::SerialExecutor executor;
  const auto memory = std::make_shared<Memory>(Memory{
      mix, mix,
      mhla::plan<float>(
          attention, mhla::shape_of(of.q.view(), of.k.view(), of.v.view(), mix.view()), executor)});
  const auto operands = [=, &of] {
    return mhla::OperandViews<float>{of.q.view(), of.k.view(), of.v.view(), memory->mix.view()};
  };
  const auto forward = [=, &of] { memory->plan.forward(executor, operands(), of.y.view()); };
  return {name, forward, [=, &of] {
            forward();
            memory->plan.backward(executor, operands(), of.dy.view(),
                                  {of.dq.view(), of.dk.view(), of.dv.view(), memory->dmix.view()});
          }};
}

/// Median seconds of a call of each, in turns; short calls are timed many at once.
std::vector<double> time(const std::vector<std::function<void()>>& calls, std::size_t turns) {
  constexpr double least = 2e-4;
  std::vector<std::vector<double>> seconds(calls.size());
  std::vector<int> count(calls.size(), 1);
  const auto run = [&](std::size_t c) {
    const double begin = bench::now_in_seconds(bench::Clock::thread);
    for (int i = 0; i < count[c]; ++i) calls[c]();
    return bench::now_in_seconds(bench::Clock::thread) - begin;
  };
  for (std::size_t c = 0; c < calls.size(); ++c) {
    run(c);
    count[c] = std::max(1, static_cast<int>(least / std::max(run(c), 1e-7)));
  }
  double total = 0;
  for (std::size_t turn = 0; turn < turns && (turn < 3 || total < 4); ++turn)
    for (std::size_t c = 0; c < calls.size(); ++c) {
      const double taken = run(c);
      total += taken;
      seconds[c].push_back(taken / count[c]);
    }
  std::vector<double> medians;
  for (const auto& of : seconds) medians.push_back(bench::median(of));
  return medians;
}

void run(const Options& options) {
  std::cout << "pass,tokens,block,softmax,linear,quadratic,automatic,of_softmax,of_cheaper\n";
  for (Index tokens = options.least; tokens <= options.most; tokens *= 2) {
    Head head(tokens);
    for (Index block = 1; block <= tokens; block *= 2) {
      const std::vector<Contender> contenders{
          softmax(head), mhla_call(head, block, mhla::Path::linear, "linear"),
          mhla_call(head, block, mhla::Path::quadratic, "quadratic"),
          mhla_call(head, block, mhla::Path::automatic, "automatic")};
      for (const auto pass : {&Contender::forward, &Contender::both}) {
        std::vector<std::function<void()>> calls;
        for (const Contender& contender : contenders) calls.push_back(contender.*pass);
        const std::vector<double> seconds = time(calls, options.turns);
        std::cout << (pass == &Contender::forward ? "forward" : "both") << "," << tokens << ","
                  << block;
        for (const double s : seconds) std::cout << "," << s * 1e6;
        std::cout << "," << seconds[3] / seconds[0] << ","
                  << seconds[3] / std::min(seconds[1], seconds[2]) << std::endl;
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const Index value = std::atoll(argv[i + 1]);
    if (std::strcmp(argv[i], "--least") == 0) options.least = value;
    if (std::strcmp(argv[i], "--most") == 0) options.most = value;
    if (std::strcmp(argv[i], "--turns") == 0) options.turns = static_cast<std::size_t>(value);
  }
  run(options);
}
