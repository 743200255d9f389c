// SPDX-License-Identifier: MIT
// The tables of a geometry: every token once, in its block, in raster order, in tiles of bounded
// length, whatever the grid; and those of packed and padded batches.
#include <cstddef>
#include <cstdint>
#include <mhla/cpu/block_table.hpp>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using namespace mhla;
using namespace mhla::cpu;

std::string name_of(const Grid& grid) {
  std::string name = "grid";
  for (const Index extent : grid.extent) name += " " + std::to_string(extent);
  name += ", block";
  for (const Index extent : grid.block) name += " " + std::to_string(extent);
  return name;
}

// Tokens of each block in raster order, found by asking every token for its block.
std::vector<std::vector<Index>> tokens_by_block(const Grid& grid) {
  std::vector<std::vector<Index>> blocks(static_cast<std::size_t>(grid.num_blocks()));
  for (Index t = 0; t < grid.num_tokens(); ++t)
    blocks[static_cast<std::size_t>(grid.block_of(t))].push_back(t);
  return blocks;
}

void check_table(const Grid& grid, Index batch) {
  INFO(name_of(grid));
  Arena measure;
  uniform_block_table(measure, grid, batch);
  const Workspace workspace(measure.used());
  Arena arena(workspace);
  const BlockTable table = uniform_block_table(arena, grid, batch);
  CHECK(arena.used() == measure.used());

  REQUIRE(table.sequences.size == batch);
  for (Index item = 0; item < batch; ++item) {
    CHECK(table.sequences[item].batch == item);
    CHECK(table.sequences[item].first_block == 0);
    CHECK(table.sequences[item].blocks == grid.num_blocks());
  }

  const auto expected = tokens_by_block(grid);
  REQUIRE(table.blocks.size == static_cast<Index>(expected.size()));
  Index next_tile = 0;
  Index next_run = 0;
  Index next_place = 0;
  for (Index b = 0; b < table.blocks.size; ++b) {
    INFO("block " << b);
    CHECK(table.blocks[b].first_tile == next_tile);
    std::vector<Index> tokens;
    for (Index i = 0; i < table.blocks[b].tiles; ++i, ++next_tile) {
      const TokenTile& tile = table.tiles[next_tile];
      CHECK(tile.first_run == next_run);
      CHECK(tile.first_place == next_place);
      CHECK(tile.offset == static_cast<Index>(tokens.size()));
      CHECK(tile.tokens >= 1);
      CHECK(tile.tokens <= max_tile_tokens);
      for (Index r = 0; r < tile.runs; ++r, ++next_run) {
        const TokenRun& run = table.runs[next_run];
        CHECK(run.count >= 1);
        for (int axis = 0; axis < 3; ++axis)
          CHECK(run.coordinate[axis] == grid.coordinate(run.first, axis));
        // A run stays in one row of the grid.
        CHECK(run.coordinate[2] + run.count <= grid.extent[2]);
        for (Index t = 0; t < run.count; ++t) tokens.push_back(run.first + t);
      }
      CHECK(tile.offset + tile.tokens == static_cast<Index>(tokens.size()));
      const Index* const places = table.places_of(tile);
      for (Index t = 0; t < tile.tokens; ++t)
        CHECK(places[t] == tokens[static_cast<std::size_t>(tile.offset + t)]);
      next_place += tile.tokens;
    }
    CHECK(tokens == expected[static_cast<std::size_t>(b)]);
  }
  CHECK(next_tile == table.tiles.size);
  CHECK(next_run == table.runs.size);
  CHECK(next_place == table.places.size);
}

}  // namespace

TEST_CASE("block table: a sequence, even, ragged, in blocks longer than a tile", "[cpu]") {
  for (const Index tokens : {1, 2, 12, 13, 104, 105, 209, 1000})
    for (const Index block : {1, 2, 5, 12, 103, 104, 105, 208, 209, 300, 4096})
      check_table({{1, 1, tokens}, {1, 1, block}}, 2);
}

TEST_CASE("block table: an image, even, ragged, in windows larger than a tile", "[cpu]") {
  check_table({{1, 6, 8}, {1, 3, 2}}, 1);
  check_table({{1, 7, 9}, {1, 3, 4}}, 3);
  check_table({{1, 5, 3}, {1, 8, 8}}, 1);
  check_table({{1, 5, 3}, {1, 1, 1}}, 1);
  check_table({{1, 3, 300}, {1, 2, 257}}, 1);
  check_table({{1, 40, 37}, {1, 19, 17}}, 2);  // tiles end inside a row of the grid
}

TEST_CASE("block table: a video, even, ragged, in boxes larger than a tile", "[cpu]") {
  check_table({{4, 6, 8}, {2, 3, 2}}, 2);
  check_table({{5, 7, 3}, {2, 3, 2}}, 1);
  check_table({{3, 5, 7}, {3, 5, 7}}, 1);
  check_table({{7, 12, 10}, {5, 7, 9}}, 1);
}

TEST_CASE("block table: nothing at all", "[cpu]") {
  check_table({{1, 1, 0}, {1, 1, 4}}, 2);
  check_table({{1, 0, 5}, {1, 2, 2}}, 1);
  check_table({{3, 4, 0}, {2, 2, 2}}, 1);
  check_table({{1, 1, 6}, {1, 1, 4}}, 0);
}

TEST_CASE("block table: tiles of a block differ by one token at most", "[cpu]") {
  const Grid grid{{1, 1, 300}, {1, 1, 300}};
  Arena measure;
  uniform_block_table(measure, grid, 1);
  const Workspace workspace(measure.used());
  Arena arena(workspace);
  const BlockTable table = uniform_block_table(arena, grid, 1);
  REQUIRE(table.tiles.size == 3);
  for (const TokenTile& tile : table.tiles) CHECK(tile.tokens == 100);
}

// ---- Packed and padded batches

namespace {

// Tables of a call, in memory of their own.
struct Tables {
  Workspace workspace;
  BlockTables tables;

  template <class V>
  Tables(const V& attention, const mhla::Shape& shape, Index max_tokens) {
    const mhla::Problem problem = checked_problem(attention, shape);
    Arena measure;
    block_tables(measure, attention, problem, max_tokens);
    workspace = Workspace(measure.used());
    Arena arena(workspace);
    tables = block_tables(arena, attention, problem, max_tokens);
    CHECK(arena.used() == measure.used());
  }
};

// Tokens of each block of a sequence, and the positions the table gives them.
struct BlockTokens {
  std::vector<Index> tokens;
  std::vector<Index> positions;
  friend bool operator==(const BlockTokens&, const BlockTokens&) = default;
};
std::vector<BlockTokens> blocks_of(const BlockTable& table, const SequenceSpan& sequence) {
  std::vector<BlockTokens> blocks;
  for (Index b = sequence.first_block; b < sequence.first_block + sequence.blocks; ++b) {
    blocks.emplace_back();
    for (Index i = 0; i < table.blocks[b].tiles; ++i) {
      const TokenTile& tile = table.tiles[table.blocks[b].first_tile + i];
      CHECK(tile.offset == static_cast<Index>(blocks.back().tokens.size()));
      for (Index r = tile.first_run; r < tile.first_run + tile.runs; ++r)
        for (Index t = 0; t < table.runs[r].count; ++t) {
          blocks.back().tokens.push_back(table.runs[r].first + t);
          blocks.back().positions.push_back(table.runs[r].coordinate[2] + t);
        }
      CHECK(tile.offset + tile.tokens == static_cast<Index>(blocks.back().tokens.size()));
      for (Index t = 0; t < tile.tokens; ++t)
        CHECK(table.places_of(tile)[t] ==
              blocks.back().tokens[static_cast<std::size_t>(tile.offset + t)]);
    }
  }
  return blocks;
}

using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

}  // namespace

TEST_CASE("block table: blocks and positions begin anew in every packed sequence", "[cpu]") {
  const std::int32_t offsets[] = {0, 5, 5, 7, 7};
  const mhla::Packed<Sequence, std::int32_t> packed({.blocks = {.block = 3}}, {offsets, 5});
  const Tables built(packed, {1, 1, 1, 7, 7, 2, 2, 1, 2, 2}, max_tile_tokens);
  for (const BlockTable* table : {&built.tables.queries, &built.tables.keys}) {
    REQUIRE(table->sequences.size == 4);
    for (const SequenceSpan& sequence : table->sequences) CHECK(sequence.batch == 0);
    CHECK(blocks_of(*table, table->sequences[0]) ==
          std::vector<BlockTokens>{{{0, 1, 2}, {0, 1, 2}}, {{3, 4}, {3, 4}}});
    CHECK(blocks_of(*table, table->sequences[1]).empty());
    CHECK(blocks_of(*table, table->sequences[2]) == std::vector<BlockTokens>{{{5, 6}, {0, 1}}});
    CHECK(blocks_of(*table, table->sequences[3]).empty());
  }
}

TEST_CASE("block table: a mask takes tokens out, and moves neither blocks nor positions", "[cpu]") {
  // Of two sequences of 7 tokens in blocks of 3: one with holes, one padded at its end.
  const std::uint8_t mask[] = {1, 0, 1, 0, 0, 0, 1,  //
                               1, 1, 1, 1, 0, 0, 0};
  const mhla::TensorView<const std::uint8_t, 2> view{mask, {2, 7}, {7, 1}};
  const mhla::Padded<Sequence> padded({.blocks = {.block = 3}}, {view, {}});
  const Tables built(padded, {2, 1, 1, 7, 7, 2, 2, 1, 3, 3}, 2);
  const BlockTable& queries = built.tables.queries;
  REQUIRE(queries.sequences.size == 2);
  CHECK(queries.sequences[1].batch == 1);
  CHECK(blocks_of(queries, queries.sequences[0]) ==
        std::vector<BlockTokens>{{{0, 2}, {0, 2}}, {{}, {}}, {{6}, {6}}});
  // Blocks behind the last token are left off, as if the sequence ended there.
  CHECK(blocks_of(queries, queries.sequences[1]) ==
        std::vector<BlockTokens>{{{0, 1, 2}, {0, 1, 2}}, {{3}, {3}}});
  // A mask without data takes every token.
  const BlockTable& keys = built.tables.keys;
  for (const SequenceSpan& sequence : keys.sequences)
    CHECK(blocks_of(keys, sequence) ==
          std::vector<BlockTokens>{{{0, 1, 2}, {0, 1, 2}}, {{3, 4, 5}, {3, 4, 5}}, {{6}, {6}}});
}
