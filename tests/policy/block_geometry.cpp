// SPDX-License-Identifier: MIT
// Block maps against the rearrangement they stand for, spelled out as nested loops:
// "(fb p1 hb p2 wb p3) -> (fb hb wb) (p1 p2 p3)", the last block of an axis cut off where the grid
// ends.
#include <algorithm>
#include <mhla/policy/block_geometry.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

using namespace mhla;

static_assert(mhla::BlockGeometry<Blocks1D> && mhla::BlockGeometry<Blocks2D> &&
              mhla::BlockGeometry<Blocks3D>);
static_assert(!mhla::BlockGeometry<int>);
static_assert(std::is_trivially_copyable_v<Grid>);
static_assert(Blocks1D{}.unset() && Blocks2D{}.unset() && Blocks3D{}.unset());
static_assert(!Blocks1D{.block = 1}.unset());
static_assert(!Blocks2D{.grid = {0, 1}, .block = {0, 0}}.unset());
static_assert(!Blocks3D{.grid = {0, 0, 0}, .block = {0, 0, 1}}.unset());

namespace {

struct Extents {
  Index f, h, w;
};

// Checks every member of the grid against loops over blocks, then over tokens in the block.
void check_block_map(const Grid& grid, Extents tokens, Extents block) {
  INFO("grid " << tokens.f << " x " << tokens.h << " x " << tokens.w << ", block " << block.f
               << " x " << block.h << " x " << block.w);
  REQUIRE(grid.num_tokens() == tokens.f * tokens.h * tokens.w);
  std::vector<int> visits(static_cast<std::size_t>(grid.num_tokens()));
  Index index = 0;
  Index layout[3] = {0, 0, 0};
  for (Index f = 0, fb = 0; f < tokens.f; f += block.f, ++fb)
    for (Index h = 0, hb = 0; h < tokens.h; h += block.h, ++hb)
      for (Index w = 0, wb = 0; w < tokens.w; w += block.w, ++wb, ++index) {
        REQUIRE(grid.block_coordinate(index, 0) == fb);
        REQUIRE(grid.block_coordinate(index, 1) == hb);
        REQUIRE(grid.block_coordinate(index, 2) == wb);
        REQUIRE(grid.block_begin(index, 0) == f);
        REQUIRE(grid.block_begin(index, 1) == h);
        REQUIRE(grid.block_begin(index, 2) == w);
        layout[0] = fb + 1;
        layout[1] = hb + 1;
        layout[2] = wb + 1;
        Index held = 0;
        for (Index p1 = f; p1 < f + block.f && p1 < tokens.f; ++p1)
          for (Index p2 = h; p2 < h + block.h && p2 < tokens.h; ++p2)
            for (Index p3 = w; p3 < w + block.w && p3 < tokens.w; ++p3, ++held) {
              const Index token = (p1 * tokens.h + p2) * tokens.w + p3;
              ++visits[static_cast<std::size_t>(token)];
              REQUIRE(grid.block_of(token) == index);
              REQUIRE(grid.coordinate(token, 0) == p1);
              REQUIRE(grid.coordinate(token, 1) == p2);
              REQUIRE(grid.coordinate(token, 2) == p3);
            }
        REQUIRE(grid.block_extent(index, 0) * grid.block_extent(index, 1) *
                    grid.block_extent(index, 2) ==
                held);
      }
  REQUIRE(grid.num_blocks() == index);
  for (int axis = 0; axis < 3; ++axis)
    if (index > 0) REQUIRE(grid.layout(axis) == layout[axis]);
  for (const int count : visits) REQUIRE(count == 1);
  REQUIRE(grid.ragged() ==
          (tokens.f / block.f * block.f != tokens.f || tokens.h / block.h * block.h != tokens.h ||
           tokens.w / block.w * block.w != tokens.w));
}

template <class Geometry>
std::string message(const Geometry& geometry, Index tokens) {
  return error_message<ShapeError>(
      [&] { mhla::checked_grid(geometry, tokens, "key_blocks", "k"); });
}

}  // namespace

TEST_CASE("block_geometry: 1-D blocks, ragged ones included", "[policy]") {
  for (Index tokens = 0; tokens < 14; ++tokens)
    for (Index block = 1; block < 16; ++block)
      check_block_map(Blocks1D{.block = block}.grid_of(tokens), {1, 1, tokens}, {1, 1, block});
}

TEST_CASE("block_geometry: 2-D blocks, ragged ones included", "[policy]") {
  for (Index rows = 1; rows < 7; ++rows)
    for (Index columns = 1; columns < 8; ++columns)
      for (Index block_rows = 1; block_rows < 5; ++block_rows)
        for (Index block_columns = 1; block_columns < 9; block_columns += 2) {
          const Blocks2D blocks{.grid = {rows, columns}, .block = {block_rows, block_columns}};
          check_block_map(blocks.grid_of(rows * columns), {1, rows, columns},
                          {1, block_rows, block_columns});
        }
}

TEST_CASE("block_geometry: 3-D blocks, ragged ones included", "[policy]") {
  for (const Extents grid :
       {Extents{4, 6, 9}, Extents{5, 3, 7}, Extents{1, 2, 8}, Extents{2, 0, 3}})
    for (const Extents block :
         {Extents{2, 3, 3}, Extents{2, 2, 4}, Extents{1, 1, 1}, Extents{7, 8, 9}, Extents{3, 2, 5}})
      check_block_map(
          Blocks3D{.grid = {grid.f, grid.h, grid.w}, .block = {block.f, block.h, block.w}}.grid_of(
              0),
          grid, block);
}

TEST_CASE("block_geometry: numbers at a few known places", "[policy]") {
  // A 4 x 6 image in 2 x 3 windows:  0 0 0 1 1 1 / 0 0 0 1 1 1 / 2 2 2 3 3 3 / 2 2 2 3 3 3
  const Grid image = Blocks2D{.grid = {4, 6}, .block = {2, 3}}.grid_of(24);
  CHECK(image.block_of(2) == 0);
  CHECK(image.block_of(3) == 1);
  CHECK(image.block_of(8) == 0);
  CHECK(image.block_of(12) == 2);
  CHECK(image.block_of(23) == 3);
  // A sequence of 10 in blocks of 4: the last block holds 2.
  const Grid sequence = Blocks1D{.block = 4}.grid_of(10);
  CHECK(sequence.num_blocks() == 3);
  CHECK(sequence.block_extent(2, 2) == 2);
  CHECK(sequence.ragged());
}

TEST_CASE("block_geometry: the box of some blocks is the smallest that holds their tokens",
          "[policy]") {
  for (const Grid& grid : {Grid{{1, 1, 11}, {1, 1, 4}}, Grid{{1, 5, 7}, {1, 2, 3}},
                           Grid{{5, 4, 7}, {2, 3, 3}}, Grid{{0, 3, 2}, {1, 3, 4}}}) {
    for (Index first = 0; first <= grid.num_blocks(); ++first)
      for (Index end = first; end <= grid.num_blocks(); ++end) {
        const mhla::GridBox box = grid.grid_box({first, end - first});
        for (int axis = 0; axis < 3; ++axis) {
          Index least = grid.extent[axis];
          Index most = -1;
          for (Index t = 0; t < grid.num_tokens(); ++t) {
            if (grid.block_of(t) < first || grid.block_of(t) >= end) continue;
            least = std::min(least, grid.coordinate(t, axis));
            most = std::max(most, grid.coordinate(t, axis));
          }
          CAPTURE(first, end, axis);
          if (most < 0) {
            CHECK(box.extent(axis) == 0);
          } else {
            CHECK(box.begin[axis] == least);
            CHECK(box.end[axis] == most + 1);
          }
        }
      }
    const mhla::GridBox all = grid.grid_box();
    for (int axis = 0; axis < 3; ++axis) CHECK(all.extent(axis) == grid.extent[axis]);
  }
}

TEST_CASE("block_geometry: a hull holds two boxes, of which one may be empty", "[policy]") {
  const mhla::GridBox a{{0, 3, 50}, {1, 5, 60}};
  const mhla::GridBox b{{4, 0, 70}, {6, 4, 80}};
  const mhla::GridBox both = hull(a, b);
  CHECK((both.begin[0] == 0 && both.begin[1] == 0 && both.begin[2] == 50));
  CHECK((both.end[0] == 6 && both.end[1] == 5 && both.end[2] == 80));
  for (const mhla::GridBox& same : {hull(a, {}), hull({}, a)})
    for (int axis = 0; axis < 3; ++axis)
      CHECK((same.begin[axis] == a.begin[axis] && same.end[axis] == a.end[axis]));
}

TEST_CASE("block_geometry: sizes beyond 2^31 tokens", "[policy]") {
  const Index tokens = Index{1} << 40;
  const Grid grid = Blocks1D{.block = 3}.grid_of(tokens);
  CHECK(grid.num_blocks() == (tokens + 2) / 3);
  CHECK(grid.block_of(tokens - 1) == (tokens - 1) / 3);
  const Index side = Index{1} << 20;
  CHECK(mhla::checked_grid(Blocks2D{.grid = {side, side}, .block = {7, 9}}, tokens, "blocks", "q")
            .block_of(tokens - 1) == (side - 1) / 7 * ((side + 8) / 9) + (side - 1) / 9);
}

TEST_CASE("block_geometry: checked_grid names the member that does not fit", "[policy]") {
  CHECK(mhla::checked_grid(Blocks1D{.block = 4}, 10, "blocks", "q").num_tokens() == 10);
  CHECK(mhla::checked_grid(Blocks1D{.block = 4}, 0, "blocks", "q").num_blocks() == 0);
  CHECK(mhla::checked_grid(Blocks2D{.grid = {0, 5}, .block = {2, 2}}, 0, "blocks", "q")
            .num_blocks() == 0);

  CHECK(says(message(Blocks1D{.block = 0}, 10), "key_blocks.block is 0", "at least 1"));
  CHECK(says(message(Blocks1D{.block = -2}, 10), "key_blocks.block is -2"));
  CHECK(says(message(Blocks2D{.grid = {2, 5}, .block = {0, 1}}, 10), "key_blocks.block[0] is 0"));
  CHECK(says(message(Blocks2D{.grid = {2, 5}, .block = {1, 0}}, 10), "key_blocks.block[1] is 0"));
  CHECK(says(message(Blocks2D{.grid = {-2, -5}, .block = {1, 1}}, 10), "key_blocks.grid[0] is -2",
             "negative"));
  CHECK(says(message(Blocks2D{.grid = {2, -5}, .block = {1, 1}}, 10), "key_blocks.grid[1] is -5"));
  CHECK(says(message(Blocks3D{.grid = {2, 5, 1}, .block = {1, 1, 0}}, 10),
             "key_blocks.block[2] is 0"));
  CHECK(says(message(Blocks2D{.grid = {2, 5}, .block = {1, 1}}, 11), "k: axis tokens is 11",
             "key_blocks.grid holds 10"));
  CHECK(says(message(Blocks3D{.grid = {2, 5, 3}, .block = {1, 1, 1}}, 29), "k: axis tokens is 29",
             "holds 30"));
  const Index large = Index{1} << 31;
  CHECK(says(message(Blocks3D{.grid = {large, large, 2}, .block = {1, 1, 1}}, 10), "64 bits"));
}
