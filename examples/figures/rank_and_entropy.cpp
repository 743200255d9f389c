// SPDX-License-Identifier: MIT
// mhla_figures: what an attention matrix can tell apart, and how sharply, as tokens become more
// (arXiv 2601.07832, figure 3b and table 1).
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <mhla/diagnostics/attention_matrix.hpp>
#include <mhla/diagnostics/bounds.hpp>
#include <mhla/diagnostics/rank.hpp>
#include <string>
#include <vector>

#include "attention_kinds.hpp"
#include "figures.hpp"

namespace figures {

namespace {

constexpr Index sana_dim = 32;  // of a head

/// The first three have the same tokens on their x axes; the last is of the most tokens.
struct Charts {
  drawing::LineChart rank, effective_rank, entropy, spectrum;
};

drawing::LineChart empty_chart(const std::string& title, const std::string& unit) {
  return {.title = title, .x = {.label = "tokens"}, .y = {.label = unit, .shows_zero = true}};
}

drawing::LineChart empty_spectrum(Index tokens) {
  return {.title = "Singular values, " + std::to_string(tokens) + " tokens",
          .x = {.label = "index", .scale = drawing::Scale::logarithmic},
          .y = {.label = "relative to the largest", .scale = drawing::Scale::logarithmic}};
}

/// The first 64 singular values and every eighth after them; those far below what float resolves
/// are left out.
drawing::Series decay(AttentionKind kind, const mhla::diagnostics::Spectrum& spectrum) {
  drawing::Series series{name_of(kind)};
  const std::vector<double>& values = spectrum.singular_values();
  for (std::size_t i = 0; i < values.size() && values[i] > 1e-7 * values[0]; i += i < 64 ? 1 : 8) {
    series.x.push_back(static_cast<double>(i + 1));
    series.y.push_back(values[i] / values[0]);
  }
  return series;
}

void add_measurements(Charts& charts, AttentionKind kind, const std::vector<Index>& sides) {
  drawing::Series rank{name_of(kind)}, effective_rank{name_of(kind)}, entropy{name_of(kind)};
  for (const Index side : sides) {
    const Scene scene(side);
    const AttentionMatrix weights = attention_matrix(kind, scene, sana_dim);
    const mhla::diagnostics::Spectrum spectrum(weights.view());
    for (drawing::Series* series : {&rank, &effective_rank, &entropy})
      series->x.push_back(static_cast<double>(scene.tokens()));
    rank.y.push_back(static_cast<double>(spectrum.rank()));
    effective_rank.y.push_back(spectrum.effective_rank());
    entropy.y.push_back(mhla::diagnostics::mean_row_entropy(weights.view()));
    if (side == sides.back()) charts.spectrum.series.push_back(decay(kind, spectrum));
  }
  charts.rank.series.push_back(rank);
  charts.effective_rank.series.push_back(effective_rank);
  charts.entropy.series.push_back(entropy);
}

void add_bounds(Charts& charts, const std::vector<Index>& sides) {
  drawing::Series linear{"linear, at most"}, mhla{"MHLA, at most"}, all{"any, at most log N"};
  for (const Index side : sides) {
    const Index tokens = side * side;
    const mhla::Grid grid = Scene(side).blocks(layout).grid_of(tokens);
    for (drawing::Series* series : {&linear, &mhla, &all})
      series->x.push_back(static_cast<double>(tokens));
    linear.y.push_back(static_cast<double>(
        mhla::diagnostics::linear_attention_rank_bound(tokens, tokens, sana_dim)));
    mhla.y.push_back(static_cast<double>(mhla::diagnostics::mhla_rank_bound(grid, grid, sana_dim)));
    all.y.push_back(std::log(static_cast<double>(tokens)));
  }
  charts.rank.bounds = {linear, mhla};
  charts.entropy.bounds = {all};
  const double tokens = all.x.back();
  const double counted = tokens * static_cast<double>(std::numeric_limits<float>::epsilon());
  charts.spectrum.bounds = {{"counted above", {1, tokens}, {counted, counted}}};
}

}  // namespace

void draw_rank_and_entropy(const Request& request) {
  const std::vector<Index> sides = request.small ? std::vector<Index>{4, 8, 12}
                                                 : std::vector<Index>{4, 8, 12, 16, 20, 24, 28, 32};
  Charts charts{
      empty_chart("Rank of the attention matrix", "singular values above float's rounding"),
      empty_chart("Effective rank", "exp of the entropy of the singular values"),
      empty_chart("Entropy of a row", "nats, mean; less is sharper"),
      empty_spectrum(sides.back() * sides.back())};
  for (const AttentionKind kind : all_kinds) add_measurements(charts, kind, sides);
  add_bounds(charts, sides);
  write(request, "rank_and_entropy",
        std::vector<drawing::LineChart>{charts.rank, charts.effective_rank, charts.entropy,
                                        charts.spectrum});
}

}  // namespace figures
