// SPDX-License-Identifier: MIT
// The memory of a call with Precision::fast beside that of memory.hpp, in the caller's workspace.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/extents.hpp>
#include <mhla/cpu/kernels.hpp>
#include <mhla/cpu/pairs/panel.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Pairs of half a summary's rows: what of S~ is paired with the other half.
inline Index paired_half_size(const Extents& e) {
  return checked_mul(pairs_of(e.feature_dim), e.value_dim);
}
/// From the summaries of two blocks, which are paired, to those of the next: room for both halves in
/// whole vectors, an odd number of cache lines as Extents::summary_stride.
inline Index paired_summary_stride(const Extents& e) {
  constexpr Index line = 16;
  return checked_mul((ceil_div(checked_mul(2, paired_half_size(e)), line) + 1) | 1, line);
}
/// From the mixed summary of one block to the next.
inline Index paired_mixed_stride(const Extents& e) {
  return whole_columns(paired_half_size(e)) + whole_columns(1);
}

/// Columns of S~ mixed at once, of each half.
inline constexpr Index mixed_columns = 64;

/// Panels of one tile and one group of rows; one for every slot.
struct PairScratch {
  Span<Pair> keys;     // [pairs of tile tokens, feature_dim]: phi(k)
  Span<Pair> values;   // [pairs of tile tokens, value_dim]: v
  Span<Pair> queries;  // [tile tokens, halves of features]: phi(q)
  Span<Pair> mixed;    // [group rows, halves of features, value_dim]: S~
  Span<float> sums;    // [feature_dim, value_dim]: S of a block of several tiles, or P
  Span<float> rows;    // [tile tokens, value_dim]: numerators
  Span<float> triangle;  // [2, mixed_columns]: of S~
  // Under Causal:
  Span<Pair> key_rows;     // [tile tokens, halves of features]
  Span<Pair> key_columns;  // [halves of features, tile tokens]
  Span<Pair> scores;       // [tile tokens, pairs of tile tokens]
  Span<Pair> running;      // [halves of features, value_dim]: P

  PairScratch() = default;
  PairScratch(Arena& arena, const Extents& e, Index group_rows, bool own_tiles) {
    const Index tokens = e.tile_tokens;
    const Index token_pairs = pairs_of(tokens);
    const Index feature_pairs = pairs_of(e.feature_dim);
    const Index value_cols = whole_columns(e.value_dim);
    keys = arena.take<Pair>(checked_mul(token_pairs, whole_columns(e.feature_dim)));
    values = arena.take<Pair>(checked_mul(token_pairs, value_cols));
    queries = arena.take<Pair>(checked_mul(tokens, feature_pairs));
    mixed = arena.take<Pair>(checked_mul(group_rows, paired_mixed_stride(e)));
    sums = arena.take<float>(checked_mul(2 * pairs_of(e.feature_dim), value_cols));
    rows = arena.take<float>(checked_mul(tokens, value_cols));
    triangle = arena.take<float>(2 * mixed_columns);
    if (!own_tiles) return;
    key_rows = arena.take<Pair>(queries.size);
    key_columns = arena.take<Pair>(checked_mul(feature_pairs, whole_columns(tokens)));
    scores = arena.take<Pair>(checked_mul(tokens, token_pairs));
    running = arena.take<Pair>(paired_mixed_stride(e));
  }
};

/// What a unit has: S of every key block, [pairs of key blocks, feature_dim, value_dim].
inline Index paired_summaries_size(const Extents& e) {
  return checked_mul(pairs_of(e.key_blocks), paired_summary_stride(e));
}

}  // namespace cpu

MHLA_NAMESPACE_END
