// SPDX-License-Identifier: MIT
// Bytes that kernels over tiles of tokens of blocks request: counted as the kernels do it, for
// tokens that are all present or whose masks the host can read. Needs no CUDA header, so that a
// cost model can use it.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/fused/moved_bytes.hpp>
#include <mhla/cuda/fused/tile_shape.hpp>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/policy/block_geometry.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// The tokens of one head, in all blocks of all items, cut into tiles block by block.
struct TileTokens {
  struct Count {
    Index entries = 0;  // of the block table
    Index masked = 0;   // mask elements read
    Index present = 0;

    Count operator*(Index n) const { return {entries * n, masked * n, present * n}; }
    Count operator+(const Count& other) const {
      return {entries + other.entries, masked + other.masked, present + other.present};
    }
    Count operator-(const Count& other) const { return *this + other * -1; }
  };
  Index blocks = 0;          // of all items
  Index tiles_of_block = 0;  // of the longest block, and so of all
  Count all;
  Count numbered;  // each tile's tokens times its number in its block, from 1

  /// For `items` items without a mask, in tiles of `rows`.
  template <AttentionVariant V>
  TileTokens(const V& attention, const Grid& grid, Index items, Index rows)
      : tiles_of_block(ceil_div(block_tokens_of(grid), rows)) {
    cuda::for_each_sequence(attention, grid, [&](const Sequence& sequence) {
      Grid own = grid;
      if constexpr (is_packed<V>) own.extent[2] = sequence.length;
      blocks += items * sequence.blocks;
      add_blocks(own, 0, 1, items, rows);
    });
    all.entries = blocks * block_tokens_of(grid);
    numbered.entries = blocks * numbered_tokens(block_tokens_of(grid), rows);
  }
  /// For a table whose places the host can read.
  TileTokens(const BlockTable& table, Index items, Index rows)
      : blocks(items * table.blocks), tiles_of_block(ceil_div(table.block_tokens, rows)) {
    for (Index item = 0; item < items; ++item)
      for (Index entry = 0; entry < table.blocks * table.block_tokens; ++entry) {
        Count of{1, 0, 0};
        if (table.mask.data != nullptr && table.places[entry].token >= 0) ++of.masked;
        if (table.place(item, entry).token >= 0) ++of.present;
        all = all + of;
        numbered = numbered + of * (entry % table.block_tokens / rows + 1);
      }
  }

  Index tiles() const { return blocks * tiles_of_block; }
  /// Tiles y of the pairs (x, y) of a block's tiles in which y is not later than x, or not earlier.
  Count of_pairs(bool later) const {
    return later ? numbered : all * (tiles_of_block + 1) - numbered;
  }
  /// Such pairs of tiles.
  Index pairs() const { return tiles() * (tiles_of_block + 1) / 2; }

 private:
  /// The tokens of a block, each times the number of its tile.
  static Index numbered_tokens(Index tokens, Index rows) {
    const Index full = tokens / rows;
    return rows * full * (full + 1) / 2 + tokens % rows * (full + 1);
  }
  /// `times` blocks for each of the grid's, which have `tokens` tokens along the axes before
  /// `axis`; along each axis all but the last block are equally long.
  void add_blocks(const Grid& grid, int axis, Index tokens, Index times, Index rows) {
    if (axis == 3) {
      all.present += times * tokens;
      numbered.present += times * numbered_tokens(tokens, rows);
      return;
    }
    const Index whole = grid.extent[axis] / grid.block[axis];
    const Index rest = grid.extent[axis] % grid.block[axis];
    if (whole > 0) add_blocks(grid, axis + 1, tokens * grid.block[axis], times * whole, rows);
    if (rest > 0) add_blocks(grid, axis + 1, tokens * rest, times, rows);
  }
};

/// Looking up a tile's tokens, `times` times each.
inline Index place_bytes(const TileTokens::Count& tokens, Index times) {
  return times * (tokens.entries * Index{sizeof(Place)} + tokens.masked);
}
/// Copying `cols` columns of 16-bit elements of tokens into tiles: one lookup per eight columns.
inline Index copied_bytes(const TileTokens::Count& tokens, Index cols) {
  return place_bytes(tokens, cols / 8) + tokens.present * cols * 2;
}
inline MovedBytes stored_bytes(const TileTokens::Count& tokens, Index cols, Update update) {
  const Index elements = tokens.present * cols * 2;
  return {place_bytes(tokens, cols / 8) + (update == Update::accumulate ? elements : 0), elements};
}
/// Processing rows of features, some lanes per row: cosines and sines if they are rotated.
inline Index feature_bytes(const TileTokens::Count& tokens, Index key_dim, bool rotates) {
  return place_bytes(tokens, lanes_of_row(key_dim)) + (rotates ? tokens.present * key_dim * 4 : 0);
}
/// m_ii and its row, by every thread.
inline Index own_mixing_bytes(Index times) {
  constexpr Index threads = 256;
  return times * threads * Index{sizeof(Index) + sizeof(float)};
}

/// Tokens of a causal block that its tokens pair with; none if `heads` is 0.
struct OwnPairs {
  Index heads = 0;        // of the other side, that a head pairs with
  bool later = false;     // queries from a key on, instead of keys up to a query
  bool weighted = false;  // each has a weight

  bool any() const { return heads > 0; }
};

/// Compile-time parameters of kernels over tokens of blocks, and the heads that they visit.
struct TokenStage {
  Index key_dim;
  Index value_dim;
  int parts;  // planes of a summary
  bool rotates;
  Index kv_heads;
  Index heads;     // of the tokens, per kv head
  Index matrices;  // summaries per kv head and block

  Index all_heads() const { return kv_heads * heads; }
  Index summary_bytes() const { return parts * key_dim * value_dim * 2; }
  Index summary_slices() const { return value_dim / summary_slice(static_cast<int>(value_dim)); }
  Index read_out_slices(const OwnPairs& own) const {
    return ReadOutShape{static_cast<int>(key_dim), static_cast<int>(value_dim), parts, own.any(),
                        own.any() && own.later}
        .slices();
  }
};

/// Keys of one head, in `slices` slices of values: tiles and features.
inline Index summarized_bytes(const TokenStage& stage, const TileTokens& tokens, Index slices) {
  const TileTokens::Count& all = tokens.all;
  return slices *
             (copied_bytes(all, stage.key_dim) + feature_bytes(all, stage.key_dim, stage.rotates)) +
         copied_bytes(all, stage.value_dim);
}

/// Bytes of summarize; `sums`: also key sums.
inline MovedBytes summarize_bytes(const TokenStage& stage, const TileTokens& tokens, bool sums,
                                  bool weighted, bool sums_weighted) {
  const Index slices = stage.summary_slices();
  const Index weights = tokens.all.present * lanes_of_row(stage.key_dim) *
                        ((weighted ? 4 : 0) + (sums_weighted ? 4 : 0));
  return {stage.all_heads() * (summarized_bytes(stage, tokens, slices) + slices * weights),
          tokens.blocks * stage.kv_heads * stage.matrices *
              (stage.summary_bytes() + (sums ? stage.key_dim * 4 : 0))};
}

/// Queries of one head, read out in `slices` slices of values, and y: all but summaries and key
/// sums. Own tokens are in the same blocks.
inline MovedBytes read_out_token_bytes(const TokenStage& stage, const TileTokens& tokens,
                                       const OwnPairs& own, Update update, Index slices) {
  const auto features = [&](const TileTokens::Count& of) {
    return copied_bytes(of, stage.key_dim) + feature_bytes(of, stage.key_dim, stage.rotates);
  };
  MovedBytes bytes = stored_bytes(tokens.all, stage.value_dim, update);
  bytes.read += slices * features(tokens.all);
  if (own.any()) {
    const TileTokens::Count pairs = tokens.of_pairs(own.later) * own.heads;
    bytes.read += slices * (features(pairs) + own_mixing_bytes(tokens.pairs() * own.heads)) +
                  copied_bytes(pairs, stage.value_dim);
    if (own.later && own.weighted) bytes.read += slices * pairs.entries * 4;
  }
  return bytes;
}

/// Bytes of read_out.
inline MovedBytes read_out_bytes(const TokenStage& stage, const TileTokens& tokens, bool divides,
                                 const OwnPairs& own, Update update) {
  const Index slices = stage.read_out_slices(own);
  MovedBytes bytes = read_out_token_bytes(stage, tokens, own, update, slices);
  // Own tokens overwrite the summary in shared memory, for every tile.
  bytes.read += (own.any() ? tokens.tiles() : tokens.blocks) * stage.summary_bytes();
  if (divides) bytes.read += tokens.blocks * slices * stage.key_dim * 4;
  return stage.all_heads() * bytes;
}

/// Bytes of feature_gradient. Own tokens are in the same blocks.
inline MovedBytes feature_gradient_bytes(const TokenStage& stage, const TileTokens& tokens,
                                         Side side, bool normalizes, const OwnPairs& own,
                                         bool wanted, Update update) {
  const TileTokens::Count& all = tokens.all;
  const Index key_dim = stage.key_dim;
  const bool of_queries = side == Side::queries;
  const bool divides = of_queries && normalizes;
  MovedBytes bytes;
  bytes.read = copied_bytes(all, key_dim) + copied_bytes(all, stage.value_dim) +
               tokens.tiles() * (stage.summary_bytes() + (normalizes ? key_dim * 4 : 0));
  const Index features = feature_bytes(all, key_dim, stage.rotates);
  if (divides || (of_queries && own.any())) {
    bytes.read += features + place_bytes(all, 1);
    bytes.written += all.entries * ((divides ? 8 : 0) + (own.any() ? 4 : 0));
  }
  if (own.any()) {
    const auto visit = [&](const TileTokens::Count& of) {
      bytes.read += copied_bytes(of, key_dim) + copied_bytes(of, stage.value_dim) +
                    feature_bytes(of, key_dim, stage.rotates);
    };
    const TileTokens::Count pairs = tokens.of_pairs(own.later) * own.heads;
    visit(pairs);
    if (of_queries) {
      bytes.read += own_mixing_bytes(tokens.tiles());
      // Again, except for the last tile.
      if (divides && wanted) visit(tokens.of_pairs(false) - all);
      if (wanted) bytes.read += copied_bytes(all, key_dim);
    } else {
      bytes.read += own_mixing_bytes(tokens.pairs() * own.heads);
      if (normalizes) bytes.read += pairs.entries * 8;
    }
  }
  if (wanted) {
    bytes += stored_bytes(all, key_dim, update);
    bytes.read += features;
  }
  return stage.all_heads() * bytes;
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
