// SPDX-License-Identifier: MIT
// mhla_figures: time of one forward pass on one core, one head of 64 in float.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../quickstart/softmax_attention.hpp"
#include "figures.hpp"
#include "measurement.hpp"

namespace figures {

namespace {

using mhla::Index;
constexpr Index dim = 64;

/// Operands and result [1, 1, tokens, dim].
struct Operands {
  quickstart::Tensor<float, 4> q, k, v, y;

  explicit Operands(Index tokens) {
    std::uint64_t seed = 1;
    for (auto* tensor : {&q, &k, &v}) {
      tensor->resize(1, 1, tokens, dim);
      mhla::testing::fill_random(mhla::testing::Normal{}, seed++, quickstart::view_of(*tensor));
    }
    y.resize(1, 1, tokens, dim);
  }
};

/// A forward pass of MHLA in blocks of so many tokens, with memory of its own.
std::function<void()> mhla_call(Operands& of, Index block) {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D> attention{.blocks = {.block = block}};
  const Index blocks = mhla::ceil_div(of.q.dimension(2), block);
  const auto mix = std::make_shared<quickstart::Tensor<float, 3>>(1, blocks, blocks);
  mhla::initialize(*mix, attention);
  const mhla::SerialExecutor executor;
  const auto q = quickstart::view_of(of.q), k = quickstart::view_of(of.k),
             v = quickstart::view_of(of.v), y = quickstart::view_of(of.y);
  const auto workspace = std::make_shared<mhla::Workspace>(mhla::forward_workspace_size<float>(
      attention, mhla::shape_of(q, k, v, quickstart::view_of(*mix)), executor));
  return [=] {
    mhla::forward_into(attention, executor, q, k, v, quickstart::view_of(*mix), y, *workspace);
  };
}

drawing::LineChart logarithmic_chart(const std::string& title, const std::string& x) {
  return {.title = title,
          .x = {.label = x, .scale = drawing::Scale::logarithmic},
          .y = {.label = "milliseconds", .scale = drawing::Scale::logarithmic}};
}

/// Softmax attention, linear attention (MHLA of one block) and MHLA in about sqrt(N) blocks.
drawing::LineChart against_tokens(std::deque<Operands>& operands,
                                  const Eigen::ThreadPoolDevice& one_thread, int rounds) {
  drawing::LineChart chart = logarithmic_chart("Forward pass, MHLA in about √N blocks", "tokens N");
  chart.series = {{"softmax"}, {"linear"}, {"MHLA"}};
  std::vector<Measurement> measurements;
  for (Operands& of : operands) {
    const Index tokens = of.q.dimension(2);
    measurements.push_back({&chart.series[0], static_cast<double>(tokens), [&of, &one_thread] {
                              quickstart::softmax_attention(one_thread, of.q, of.k, of.v, of.y);
                            }});
    measurements.push_back({&chart.series[1], static_cast<double>(tokens), mhla_call(of, tokens)});
    measurements.push_back({&chart.series[2], static_cast<double>(tokens),
                            mhla_call(of, mhla::propose_blocks(tokens).block)});
  }
  measure(measurements, rounds, 50);
  return chart;
}

/// MHLA of `sizes` tokens in more and more blocks, over lines of what softmax attention took.
drawing::LineChart against_blocks(std::deque<Operands>& operands, const std::vector<Index>& sizes,
                                  const drawing::Series& softmax, int rounds) {
  drawing::LineChart chart = logarithmic_chart("MHLA against its number of blocks", "blocks M");
  for (const Index tokens : sizes) chart.series.push_back({"N = " + std::to_string(tokens)});
  std::vector<Measurement> measurements;
  for (Operands& of : operands) {
    const Index tokens = of.q.dimension(2);
    const auto at = std::find(sizes.begin(), sizes.end(), tokens) - sizes.begin();
    if (at == static_cast<std::ptrdiff_t>(sizes.size())) continue;
    drawing::Series& series = chart.series[static_cast<std::size_t>(at)];
    const Index most = std::min<Index>(1024, tokens / 4);
    for (Index blocks = 1; blocks <= most; blocks *= 2)
      measurements.push_back(
          {&series, static_cast<double>(blocks), mhla_call(of, tokens / blocks)});
    const auto same = std::find(softmax.x.begin(), softmax.x.end(), static_cast<double>(tokens));
    const double time = softmax.y[static_cast<std::size_t>(same - softmax.x.begin())];
    chart.bounds.push_back(
        {series.name + ", softmax", {1, static_cast<double>(most)}, {time, time}});
  }
  measure(measurements, rounds, 50);
  return chart;
}

}  // namespace

void draw_time(const Request& request) {
  Eigen::ThreadPool threads(1);
  const Eigen::ThreadPoolDevice one_thread(&threads, 1);
  std::deque<Operands> operands;
  for (Index tokens = 64; tokens <= (request.small ? 256 : 16384); tokens *= 2)
    operands.emplace_back(tokens);
  const std::vector<Index> sizes =
      request.small ? std::vector<Index>{256} : std::vector<Index>{1024, 4096, 16384};
  const int rounds = request.small ? 1 : 5;
  const drawing::LineChart tokens = against_tokens(operands, one_thread, rounds);
  write(request, "time",
        std::vector<drawing::LineChart>{tokens,
                                        against_blocks(operands, sizes, tokens.series[0], rounds)});
}

}  // namespace figures
