// SPDX-License-Identifier: MIT
// mhla_figures: what the number of blocks costs, at the shapes of the paper's sweep over it (Table
// 14 of arXiv 2601.07832): 6 heads of 64, 256 to 4,096 tokens of a square grid, 4 to 1,024 blocks.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "../quickstart/tensors.hpp"
#include "figures.hpp"
#include "measurement.hpp"

namespace figures {

namespace {

using mhla::Index;
using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
constexpr Index heads = 6;
constexpr Index dim = 64;

using quickstart::view_of;

/// Both passes of one layer on one core, in memory of its own.
class Layer {
 public:
  Layer(Index side, Index blocks_of_side)
      : attention_{.blocks = {.grid = {side, side},
                              .block = {side / blocks_of_side, side / blocks_of_side}}},
        mix_(1, blocks_of_side * blocks_of_side, blocks_of_side * blocks_of_side),
        dmix_(mix_) {
    std::uint64_t seed = 1;
    for (auto* tensor : {&q_, &k_, &v_, &dy_, &y_, &dq_, &dk_, &dv_}) {
      tensor->resize(1, heads, side * side, dim);
      mhla::testing::fill_random(mhla::testing::Normal{}, seed++, view_of(*tensor));
    }
    mhla::initialize(mix_, attention_);
    const mhla::Shape shape = mhla::shape_of(view_of(q_), view_of(k_), view_of(v_), view_of(mix_));
    workspace_ = mhla::Workspace(
        std::max(mhla::forward_workspace_size<float>(attention_, shape, executor_),
                 mhla::backward_workspace_size<float>(attention_, shape, executor_)));
  }

  void forward() {
    mhla::forward_into(attention_, executor_, view_of(q_), view_of(k_), view_of(v_), view_of(mix_),
                       view_of(y_), workspace_);
  }
  void backward() {
    mhla::backward_into(attention_, executor_, view_of(q_), view_of(k_), view_of(v_), view_of(mix_),
                        view_of(dy_), {view_of(dq_), view_of(dk_), view_of(dv_), view_of(dmix_)},
                        mhla::Update::overwrite, workspace_);
  }
  double workspace_kibibytes() const { return static_cast<double>(workspace_.size()) / 1024; }

 private:
  using Tensor = quickstart::Tensor<float, 4>;

  Attention attention_;
  mhla::SerialExecutor executor_;
  Tensor q_, k_, v_, dy_, y_, dq_, dk_, dv_;
  quickstart::Tensor<float, 3> mix_, dmix_;
  mhla::Workspace workspace_{0};
};

drawing::LineChart chart_of(const std::string& title, const std::string& unit) {
  return {.title = title,
          .x = {.label = "blocks M", .scale = drawing::Scale::logarithmic},
          .y = {.label = unit, .scale = drawing::Scale::logarithmic}};
}

}  // namespace

void draw_choice_of_blocks(const Request& request) {
  std::vector<drawing::LineChart> charts{chart_of("Forward pass", "milliseconds"),
                                         chart_of("Backward pass", "milliseconds"),
                                         chart_of("Workspace of both", "kibibytes")};
  std::deque<Layer> layers;
  std::vector<Measurement> measurements;
  for (const Index side : request.small ? std::vector<Index>{16} : std::vector<Index>{16, 32, 64})
    for (drawing::LineChart& chart : charts)
      chart.series.push_back({"N = " + std::to_string(side * side)});
  for (std::size_t i = 0; i < charts[0].series.size(); ++i) {
    const Index side = Index{16} << i;
    for (Index blocks_of_side = 1; blocks_of_side <= side / 2; blocks_of_side *= 2) {
      const auto blocks = static_cast<double>(blocks_of_side * blocks_of_side);
      Layer& layer = layers.emplace_back(side, blocks_of_side);
      measurements.push_back({&charts[0].series[i], blocks, [&layer] { layer.forward(); }});
      measurements.push_back({&charts[1].series[i], blocks, [&layer] { layer.backward(); }});
      charts[2].series[i].x.push_back(blocks);
      charts[2].series[i].y.push_back(layer.workspace_kibibytes());
    }
  }
  measure(measurements, request.small ? 1 : 5, 50);
  write(request, "choice_of_blocks", charts);
}

}  // namespace figures
