// SPDX-License-Identifier: MIT
// mhla_figures: mixing matrices before any training.
#include <algorithm>
#include <mhla/mixing_matrix.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <string>
#include <vector>

#include "figures.hpp"

namespace figures {

namespace {

using mhla::Grid;
using mhla::Index;

/// The matrix between the blocks of a grid whose blocks are single tokens: only the layout counts.
/// `row` is the number of blocks after which the layout begins a new row, where lines are drawn.
drawing::HeatMap map_of(const std::string& caption, const Grid& grid, Index row,
                        mhla::Transform transform = mhla::Transform::automatic) {
  const Index blocks = grid.num_blocks();
  mhla::testing::HostTensor<double, 2> mix(blocks, blocks);
  mhla::initialize(mix.view(), grid, {.transform = transform});
  drawing::HeatMap map{.name = caption,
                       .caption = {caption},
                       .rows = static_cast<std::size_t>(blocks),
                       .columns = static_cast<std::size_t>(blocks),
                       .row_label = "query block",
                       .column_label = "key block",
                       .row_step = static_cast<std::size_t>(row),
                       .column_step = static_cast<std::size_t>(row)};
  for (Index i = 0; i < blocks; ++i)
    for (Index b = 0; b < blocks; ++b) map.values.push_back(mix.view()(i, b));
  const double largest = *std::max_element(map.values.begin(), map.values.end());
  map.caption.push_back("largest weight " + drawing::fixed_point(largest, 3));
  return map;
}

}  // namespace

void draw_initial_matrices(const Request& request) {
  drawing::HeatMapGrid grid{
      .title = "Mixing matrices before training, as mhla::initialize fills them",
      .bar_label = "of the largest",
      .columns = 3,
      .relative = true};
  grid.maps.push_back(map_of("sequence, 16 blocks", {{1, 1, 16}, {1, 1, 1}}, 0));
  grid.maps.push_back(map_of("image, 4 × 4 blocks: DeiT, DiT", {{1, 4, 4}, {1, 1, 1}}, 4));
  grid.maps.push_back(
      map_of("sequence, 32 blocks, causal", {{1, 1, 32}, {1, 1, 1}}, 0, mhla::Transform::causal));
  if (!request.small) {
    grid.maps.push_back(map_of("image, 7 × 7 blocks: VLT", {{1, 7, 7}, {1, 1, 1}}, 7));
    grid.maps.push_back(map_of("video, 7 × 3 × 5 blocks", {{7, 3, 5}, {1, 1, 1}}, 15));
    grid.maps.push_back(
        map_of("image, 4 × 4 blocks, local", {{1, 4, 4}, {1, 1, 1}}, 4, mhla::Transform::local));
  }
  write(request, "initial_matrices", grid);
}

}  // namespace figures
