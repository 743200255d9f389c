// SPDX-License-Identifier: MIT
// mhla_figures: what three queries of an image attend to.
#include <algorithm>
#include <iterator>
#include <mhla/diagnostics/attention_matrix.hpp>
#include <string>
#include <vector>

#include "attention_kinds.hpp"
#include "figures.hpp"

namespace figures {

namespace {

struct Query {
  const char* what;
  double row, column;  ///< of the image's height and width
};
constexpr Query queries[] = {
    {"a disc", 0.25, 0.28}, {"the band", 0.75, 0.3}, {"the ground", 0.2, 0.8}};

/// An image of one value for each token, with a mark at the query.
drawing::HeatMap image_of(const Scene& scene, Index query) {
  const auto side = static_cast<std::size_t>(scene.side());
  const auto token = static_cast<std::size_t>(query);
  return {.rows = side, .columns = side, .marks = {{token / side, token % side}}};
}

drawing::HeatMap things_of(const Scene& scene, const Query& query) {
  drawing::HeatMap map = image_of(scene, scene.token_at(query.row, query.column));
  map.name = std::string("things, query on ") + query.what;
  map.caption = {std::string("query on ") + query.what, "a colour for each thing"};
  for (Index t = 0; t < scene.tokens(); ++t) map.values.push_back(scene.thing(t));
  return map;
}

drawing::HeatMap row_of(AttentionKind kind, const AttentionMatrix& weights, const Scene& scene,
                        const Query& query) {
  const Index row = scene.token_at(query.row, query.column);
  drawing::HeatMap map = image_of(scene, row);
  for (Index j = 0; j < scene.tokens(); ++j) map.values.push_back(weights.view()(row, j));
  const double largest = *std::max_element(map.values.begin(), map.values.end());
  const double entropy = mhla::diagnostics::row_entropy(weights.view(), row);
  map.name = std::string(name_of(kind)) + ", query on " + query.what;
  map.caption = {name_of(kind), "largest " + drawing::fixed_point(largest, 4) + ", entropy " +
                                    drawing::fixed_point(entropy, 2) + " nats"};
  if (kind == AttentionKind::mhla) map.row_step = map.column_step = map.rows / layout;
  return map;
}

}  // namespace

void draw_attention_maps(const Request& request) {
  const Index side = request.small ? 12 : 32;
  const Scene scene(side);
  drawing::HeatMapGrid grid{
      .title = "What a query (boxed) attends to: its row of the attention matrix, over the image",
      .bar_label = "of the largest",
      .columns = 4,
      .relative = true};
  std::vector<AttentionMatrix> matrices;
  matrices.reserve(std::size(all_kinds));
  for (const AttentionKind kind : all_kinds) matrices.push_back(attention_matrix(kind, scene, 64));
  for (const Query& query : queries) {
    grid.maps.push_back(things_of(scene, query));
    for (const AttentionKind kind : all_kinds)
      grid.maps.push_back(row_of(kind, matrices[static_cast<std::size_t>(kind)], scene, query));
  }
  write(request, "attention_maps", grid);
}

}  // namespace figures
