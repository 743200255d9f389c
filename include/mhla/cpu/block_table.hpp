// SPDX-License-Identifier: MIT
// A geometry lowered to run-time tables: which tokens form which block. Stages only read tables, so
// that packed, ragged and masked batches differ in their tables, not in the stages.
//
//   sequence -> blocks -> tiles (what a stage works on) -> runs of tokens
//
// On the quadratic path (quadratic/unit.hpp) a tile may cross blocks. Tiles have the tokens in
// the order of their blocks:
//
//   sequence -> tiles -> runs of tokens       sequence -> blocks
#pragma once

#include <mhla/cpu/kernels.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Maximum tokens per tile: a tile's panels stay in L2 at all usual head dimensions.
inline constexpr Index max_tile_tokens = 104;
static_assert(max_tile_tokens <= max_placed_rows);
/// Under Causal, where a tile's own triangle has quadratic cost.
inline constexpr Index max_causal_tile_tokens = 64;

/// Consecutive tokens of one grid row.
struct TokenRun {
  Index first;
  Index count;
  Index coordinate[3];  // of the first token; the others follow along the last axis

  /// Whether `before`, unless it is not a run, goes on as this one.
  bool continues(const TokenRun& before) const {
    return before.first >= 0 && first == before.first + before.count &&
           coordinate[0] == before.coordinate[0] && coordinate[1] == before.coordinate[1] &&
           coordinate[2] == before.coordinate[2] + before.count;
  }
};

/// A part of a block, or of a sequence, at `offset` tokens from its start. Its tokens are entries
/// [first_place, first_place + tokens) of the table's places.
struct TokenTile {
  Index first_run;
  Index runs;
  Index offset;
  Index tokens;
  Index first_place;
};

/// What tiles are cut from.
enum class TilesOf { block, sequence };

/// A block: tiles [first_tile, first_tile + tiles), and which tokens of its sequence it has. With
/// tiles of a sequence its first block has them all.
struct BlockSpan {
  Index first_tile;
  Index tiles;
  Index first_token;
  Index tokens;
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
  Span<Index> places;  // the tokens of all tiles

  const Index* places_of(const TokenTile& tile) const { return places.data + tile.first_place; }
  Span<const TokenTile> tiles_of(const BlockSpan& block) const {
    return {tiles.data + block.first_tile, block.tiles};
  }
};

namespace block_table {

struct EveryToken {
  constexpr bool operator()(Index) const { return true; }
};

/// Tokens of a mask's row that take part.
struct MaskRow {
  const std::uint8_t* data;
  Index stride;

  bool operator()(Index token) const { return data[token * stride] != 0; }
};

// Calls run(run) for the longest runs of tokens of a block that `takes` lets through, in order.
// place(token) is where a tensor has it.
template <class Place, class Takes, class Visitor>
MHLA_ONCE_A_CALL void for_each_run(const Grid& grid, Index block, const Place& place,
                                   const Takes& takes, Visitor&& run) {
  Index begin[3];
  Index end[3];
  for (int axis = 0; axis < 3; ++axis) {
    begin[axis] = grid.block_begin(block, axis);
    end[axis] = begin[axis] + grid.block_extent(block, axis);
  }
  for (Index i = begin[0]; i < end[0]; ++i)
    for (Index j = begin[1]; j < end[1]; ++j) {
      const Index first = place((i * grid.extent[1] + j) * grid.extent[2] + begin[2]);
      if constexpr (std::is_same_v<Takes, EveryToken>) {
        run(TokenRun{first, end[2] - begin[2], {i, j, begin[2]}});
      } else {
        Index from = begin[2];
        for (Index l = begin[2]; l <= end[2]; ++l) {
          if (l < end[2] && takes(first + l - begin[2])) continue;
          if (l > from) run(TokenRun{first + from - begin[2], l - from, {i, j, from}});
          from = l + 1;
        }
      }
    }
}

// Counts the entries of a table, or fills them: the same traversal does both.
class Builder {
 public:
  Builder(Index max_tokens, TilesOf tiles_of, const BlockTable* table)
      : max_tokens_(max_tokens), tiles_of_(tiles_of), table_(table) {}

  // Adds some of a grid's blocks, where the tokens of `held` blocks alone are counted, the first of
  // them `first_token`; returns how many there are up to the last one with a token that takes part.
  template <class Takes>
  MHLA_ONCE_A_CALL Index add(const Grid& grid, const BlockRange& range, const BlockRange& held,
                             Index first_token, const Takes& takes) {
    const bool part = held.count < grid.num_blocks();
    const auto place = [&](Index token) MHLA_ONCE_A_CALL {
      return first_token +
             (part ? grid.tokens_before(held.end(), token) - grid.tokens_before(held.first, token)
                   : token);
    };
    const auto for_each_run_of = [&](const BlockRange& some, const auto& run) {
      for (Index b = some.first; b < some.end(); ++b) for_each_run(grid, b, place, takes, run);
    };
    const auto tokens_of = [&](const BlockRange& some) {
      Index tokens = 0;
      for_each_run_of(some, [&](const TokenRun& run) { tokens += run.count; });
      return tokens;
    };
    const Index before = blocks;
    Index used = 0;
    Index of_sequence = 0;
    for (Index b = range.first; b < range.end(); ++b) {
      const BlockRange block{b, 1};
      const Index tokens = tokens_of(block);
      if (table_ != nullptr) table_->blocks[blocks] = {tiles, 0, of_sequence, tokens};
      if (tiles_of_ == TilesOf::block) cut(blocks, tokens, block, for_each_run_of);
      ++blocks;
      of_sequence += tokens;
      if (tokens > 0) used = blocks - before;
    }
    if (tiles_of_ == TilesOf::sequence && range.count > 0)
      cut(before, of_sequence, range, for_each_run_of);
    return used;
  }
  // Adds an item's tokens that a mask, if there is one, does not take away.
  Index add(const Grid& grid, const BlockRange& range, const BlockRange& held,
            const TensorView<const std::uint8_t, 2>& mask, Index item) {
    if (mask.data == nullptr) return add(grid, range, held, 0, EveryToken{});
    return add(grid, range, held, 0, MaskRow{mask.data + item * mask.stride[0], mask.stride[1]});
  }
  void add_sequence(Index batch, Index first_block, Index count) {
    if (table_ != nullptr) table_->sequences[sequences] = {batch, first_block, count};
    ++sequences;
  }

  Index sequences = 0;
  Index blocks = 0;
  Index tiles = 0;
  Index runs = 0;
  Index places = 0;

 private:
  // Cuts the runs that for_each_run_of(range, run) gives, of `tokens` tokens, into tiles of nearly
  // equal length, which `block` gets.
  template <class Runs>
  MHLA_ONCE_A_CALL void cut(Index block, Index tokens, const BlockRange& range,
                            const Runs& for_each_run_of) {
    const Index num_tiles = ceil_div(tokens, max_tokens_);
    if (table_ != nullptr) table_->blocks[block].tiles = num_tiles;
    Index tile = 0;
    Index tile_end = 0;  // counts tokens from the start, as does position
    Index position = 0;
    TokenRun last{-1, 0, {}};
    for_each_run_of(range, [&](TokenRun run) MHLA_ONCE_A_CALL {
      while (run.count > 0) {  // a run continues in the next tile
        if (position == tile_end) {
          tile_end = even_split(tokens, num_tiles, ++tile);
          if (table_ != nullptr)
            table_->tiles[tiles] = {runs, 0, position, tile_end - position, places};
          ++tiles;
          last.first = -1;
        }
        const Index count = (std::min)(run.count, tile_end - position);
        const bool continues = run.continues(last);  // in the next block
        if (continues) {
          last.count += count;
        } else {
          last = {run.first, count, {run.coordinate[0], run.coordinate[1], run.coordinate[2]}};
          ++runs;
        }
        if (table_ != nullptr) {
          table_->runs[runs - 1] = last;
          if (!continues) ++table_->tiles[tiles - 1].runs;
          for (Index i = 0; i < count; ++i) table_->places[places + i] = run.first + i;
        }
        places += count;
        position += count;
        run.first += count;
        run.coordinate[2] += count;
        run.count -= count;
      }
    });
  }

  Index max_tokens_;
  TilesOf tiles_of_;
  const BlockTable* table_;
};

// Takes the table that describe(builder) makes from the arena, and fills it unless the arena only
// measures.
template <class Describe>
BlockTable build(Arena& arena, Index max_tokens, TilesOf tiles_of, const Describe& describe) {
  Builder counts(max_tokens, tiles_of, nullptr);
  describe(counts);
  BlockTable table;
  table.sequences = arena.take<SequenceSpan>(counts.sequences);
  table.blocks = arena.take<BlockSpan>(counts.blocks);
  table.tiles = arena.take<TokenTile>(counts.tiles);
  table.runs = arena.take<TokenRun>(counts.runs);
  table.places = arena.take<Index>(counts.places);
  if (arena.measures()) return table;
  Builder entries(max_tokens, tiles_of, &table);
  describe(entries);
  return table;
}

}  // namespace block_table

/// The tables of a call, for its queries and its keys.
struct BlockTables {
  BlockTable queries;
  BlockTable keys;
};

/// One sequence per batch item, all cut the same way.
template <AttentionVariant V>
MHLA_ONCE_A_CALL BlockTables block_tables(Arena& arena, const V&, const Problem& problem,
                                          Index max_tokens, TilesOf tiles_of) {
  const auto table = [&](const Grid& grid, const BlockRange& range, const BlockRange& held) {
    return block_table::build(arena, max_tokens, tiles_of, [&](block_table::Builder& builder) {
      builder.add(grid, range, held, 0, block_table::EveryToken{});
      for (Index item = 0; item < problem.shape.batch; ++item)
        builder.add_sequence(item, 0, range.count);
    });
  };
  const BlockTable queries = table(problem.query_grid, problem.queries, problem.held_queries);
  if (problem.query_grid == problem.key_grid && problem.queries == problem.keys &&
      problem.held_queries == problem.held_keys)
    return {queries, queries};
  return {queries, table(problem.key_grid, problem.keys, problem.held_keys)};
}

/// The sequences of one item, each with its own blocks, shared by queries and keys.
template <class A, class Offset>
MHLA_ONCE_A_CALL BlockTables block_tables(Arena& arena, const Packed<A, Offset>& packed,
                                          const Problem& problem, Index max_tokens,
                                          TilesOf tiles_of) {
  const BlockTable table =
      block_table::build(arena, max_tokens, tiles_of, [&](block_table::Builder& builder) {
        Grid grid = problem.query_grid;
        for (Index s = 0; s < packed.sequences(); ++s) {
          grid.extent[2] = packed.length(s);
          const Index first = builder.blocks;
          const BlockRange all{0, grid.num_blocks()};
          builder.add_sequence(
              0, first, builder.add(grid, all, all, packed.begin(s), block_table::EveryToken{}));
        }
      });
  return {table, table};
}

/// One sequence per batch item, without its masked tokens. Blocks after the last one with a token
/// are dropped, so that a sequence padded at its end is cut and summed as without padding.
template <class A>
MHLA_ONCE_A_CALL BlockTables block_tables(Arena& arena, const Padded<A>& padded,
                                          const Problem& problem, Index max_tokens,
                                          TilesOf tiles_of) {
  const auto table = [&](const Grid& grid, const BlockRange& range, const BlockRange& held,
                         const TensorView<const std::uint8_t, 2>& mask) {
    return block_table::build(arena, max_tokens, tiles_of, [&](block_table::Builder& builder) {
      for (Index item = 0; item < problem.shape.batch; ++item) {
        const Index first = builder.blocks;
        builder.add_sequence(item, first, builder.add(grid, range, held, mask, item));
      }
    });
  };
  const BlockTable queries =
      table(problem.query_grid, problem.queries, problem.held_queries, padded.masks.query);
  return {queries, table(problem.key_grid, problem.keys, problem.held_keys, padded.masks.key)};
}

/// One side's blocks whose tokens a mask [batch, tokens of `held`] has, and what mask and counts
/// are called.
struct MaskedBlocks {
  const char* mask_name;
  const char* used_name;
  const Grid& grid;
  BlockRange blocks;
  BlockRange held;
  TensorView<const std::uint8_t, 2> mask;
};

/// Calls visit(item, n) where blocks [0, n) of an item are those up to the last with a token that
/// the mask keeps; 0: there is none.
template <class X, class Visit>
void for_each_used(const MaskedBlocks& of, Index batch, Span<X> used, const Visit& visit) {
  TokenMasks::require_fit(of.mask, of.mask_name, batch, of.grid.num_tokens(of.held));
  require_extent(of.used_name, "batch", used.size, batch, "it counts the blocks of every item");
  for (Index item = 0; item < batch; ++item) {
    const Index last = block_table::Builder(1, TilesOf::block, nullptr)
                           .add(of.grid, of.blocks, of.held, of.mask, item);
    visit(item, last == 0 ? 0 : of.blocks.first + last);
  }
}

/// Raises used[item] to what these blocks show.
inline void count_used(const MaskedBlocks& of, Index batch, Span<Index> used) {
  for_each_used(of, batch, used,
                [&](Index item, Index n) { used[item] = (std::max)(used[item], n); });
}

/// Throws ShapeError unless used[item] is at least that.
inline void require_used(const MaskedBlocks& of, Index batch, Span<const Index> used) {
  for_each_used(of, batch, used, [&](Index item, Index n) {
    if (used[item] < n || used[item] > of.grid.num_blocks())
      throw ShapeError({"mhla: ", of.used_name, "[", item, "] is ", used[item],
                        " but must be at least ", n, ", by the mask of blocks [", of.blocks.first,
                        ", ", of.blocks.end(), "), and at most ", of.grid.num_blocks()});
  });
}

}  // namespace cpu

MHLA_NAMESPACE_END
