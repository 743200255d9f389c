// SPDX-License-Identifier: MIT
// A geometry lowered to run-time tables: which tokens make which block. Stages read tables only, so
// that packed, ragged and masked batches are other tables under the same stages.
//
//   sequence -> blocks -> tiles (what a stage works on) -> runs of tokens
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/policy/block_geometry.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Tokens per tile at the most: a tile's panels stay in the L2 cache at every usual head dimension.
inline constexpr Index max_tile_tokens = 128;

/// Consecutive tokens of one grid row.
struct TokenRun {
  Index first;
  Index count;
  Index coordinate[3];  // of the first token; the others follow on the last axis
};

/// A part of a block, at `offset` tokens from its beginning.
struct TokenTile {
  Index first_run;
  Index runs;
  Index offset;
  Index tokens;
};

/// A block: tiles [first_tile, first_tile + tiles).
struct BlockSpan {
  Index first_tile;
  Index tiles;
};

/// A sequence of one batch item: blocks [first_block, first_block + blocks). A block's place in its
/// sequence is its row, or column, of the mixing matrix.
struct SequenceSpan {
  Index batch;
  Index first_block;
  Index blocks;
};

/// Built once per call, in the workspace.
struct BlockTable {
  Span<SequenceSpan> sequences;
  Span<BlockSpan> blocks;
  Span<TokenTile> tiles;
  Span<TokenRun> runs;

  /// Takes the table of `batch` sequences with the blocks of `grid` from the arena, and fills it
  /// unless the arena only measures.
  BlockTable(Arena& arena, const Grid& grid, Index batch);
  BlockTable() = default;
};

namespace block_table {

// Calls tile(tokens, offset) and run(run) for every tile and run of a block, in order.
template <class TileVisitor, class RunVisitor>
void walk(const Grid& grid, Index block, TileVisitor&& tile, RunVisitor&& run) {
  const Index begin[3] = {grid.block_begin(block, 0), grid.block_begin(block, 1),
                          grid.block_begin(block, 2)};
  const Index extent[3] = {grid.block_extent(block, 0), grid.block_extent(block, 1),
                           grid.block_extent(block, 2)};
  const Index tokens = extent[0] * extent[1] * extent[2];
  const Index tiles = ceil_div(tokens, max_tile_tokens);
  Index next_tile = 0;
  Index tile_end = 0;  // both count tokens from the beginning of the block
  Index position = 0;
  for (Index i = 0; i < extent[0]; ++i)
    for (Index j = 0; j < extent[1]; ++j)
      for (Index l = 0; l < extent[2];) {
        if (position == tile_end) {
          tile_end = even_split(tokens, tiles, ++next_tile);
          tile(tile_end - position, position);
        }
        const Index left_in_row = extent[2] - l;
        const Index left_in_tile = tile_end - position;
        const Index count = left_in_row < left_in_tile ? left_in_row : left_in_tile;
        const Index at[3] = {begin[0] + i, begin[1] + j, begin[2] + l};
        const Index first = (at[0] * grid.extent[1] + at[1]) * grid.extent[2] + at[2];
        run(TokenRun{first, count, {at[0], at[1], at[2]}});
        l += count;
        position += count;
      }
}

}  // namespace block_table

inline BlockTable::BlockTable(Arena& arena, const Grid& grid, Index batch) {
  const Index num_blocks = grid.num_blocks();
  Index num_tiles = 0;
  Index num_runs = 0;
  for (Index b = 0; b < num_blocks; ++b)
    block_table::walk(
        grid, b, [&](Index, Index) { ++num_tiles; }, [&](const TokenRun&) { ++num_runs; });

  sequences = arena.take<SequenceSpan>(batch);
  blocks = arena.take<BlockSpan>(num_blocks);
  tiles = arena.take<TokenTile>(num_tiles);
  runs = arena.take<TokenRun>(num_runs);
  if (arena.measures()) return;

  for (Index item = 0; item < batch; ++item) sequences[item] = {item, 0, num_blocks};
  Index tile = 0;
  Index run = 0;
  for (Index b = 0; b < num_blocks; ++b) {
    blocks[b] = {tile, 0};
    block_table::walk(
        grid, b,
        [&](Index tokens, Index offset) {
          tiles[tile++] = {run, 0, offset, tokens};
          ++blocks[b].tiles;
        },
        [&](const TokenRun& r) {
          runs[run++] = r;
          ++tiles[tile - 1].runs;
        });
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
