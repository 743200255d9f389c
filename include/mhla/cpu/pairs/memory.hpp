// SPDX-License-Identifier: MIT
// The memory of a call with Precision::fast beside that of memory.hpp, in the caller's workspace.
#pragma once

#include <mhla/cpu/pairs/panel.hpp>
#include <mhla/cpu/partition.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Rows and columns of a summary: S has features as rows, and its transpose, which the backward
/// pass has, values.
struct SummaryShape {
  Index rows = 0;
  Index cols = 0;

  SummaryShape() = default;
  SummaryShape(const Extents& e, bool backward)
      : rows(backward ? e.value_dim : e.feature_dim),
        cols(backward ? e.feature_dim : e.value_dim) {}

  /// Elements of half its rows: what is paired, once mixed, with the other half.
  Index half() const { return checked_mul(pairs_of(rows), cols); }
  Panel<float> sums(Span<float> memory) const { return whole_panel(memory.data, rows, cols); }
};

/// Summaries of blocks, those of 2 b and 2 b + 1 in pairs: [pairs of blocks, rows, cols]. After all
/// of them, under a causality, whether each pair is finite.
struct PairedSummaries {
  Pair* data = nullptr;
  Index blocks = 0;
  SummaryShape shape;

  /// From pair to pair: an odd number of cache lines, as Extents::summary_stride. There is room for
  /// both halves in whole vectors.
  static Index stride(const SummaryShape& shape) {
    constexpr Index line = 16;
    return checked_mul((ceil_div(checked_mul(2, shape.half()), line) + 1) | 1, line);
  }
  static Index size(const SummaryShape& shape, Index blocks) {
    return checked_mul(pairs_of(blocks), stride(shape) + 1);
  }

  /// The pair that a block is in, as a matrix.                                   // [rows, cols]
  VnniPanel with(Index block) const {
    return {data + block / 2 * stride(shape), shape.rows, shape.cols, shape.cols};
  }
  /// Whether pairs [begin, end) are finite; complete() notes it.
  bool are_finite(Index begin, Index end) const {
    const Pair* const noted = data + pairs_of(blocks) * stride(shape);
    return std::find(noted + begin, noted + end, Pair{0}) == noted + end;
  }
  /// Once the sums of both blocks of a pair are written. Zeros what follows the last row: an odd
  /// row's partner, and the end of the last vector.
  void complete(Index block, bool notes_finite) const {
    const Index used = shape.rows * shape.cols;
    std::fill_n(with(block).data + used, stride(shape) - used, Pair{0});
    if (notes_finite)
      data[pairs_of(blocks) * stride(shape) + block / 2] =
          pair_functions<float>().all_finite({with(block).data, 1, stride(shape), 0});
  }
  /// What a block's sums become, rounded, the odd block's after the even one's; `add`, if it has
  /// rows, is added to them before.
  PairProduct half(Index block, const Panel<float>& add = {}) const {
    return {.into = block % 2 == 0 ? PairSums::lower_halves : PairSums::upper_halves,
            .sums_stride = add.stride,
            .pairs = with(block).data,
            .pairs_stride = shape.cols,
            .stored_cols = shape.cols,
            .add = add.rows > 0 ? add.data : nullptr};
  }
  /// Some elements of one half of all of them, [pairs of blocks, count]: mixing's right factor.
  VnniPanel elements(Index first, Index count) const {
    return {data + first, pairs_of(blocks), count, stride(shape)};
  }
};

/// Mixed summaries of a group of blocks, in pairs of their own rows.      // [blocks, half, cols]
struct MixedSummaries {
  Pair* data = nullptr;
  Index blocks = 0;
  SummaryShape shape;

  static Index stride(const SummaryShape& shape) { return whole_columns(shape.half()) + 16; }
  /// Of block `row` of the group.                                         // [pairs of rows, cols]
  VnniPanel of(Index row) const {
    return {data + row * stride(shape), pairs_of(shape.rows), shape.cols, shape.cols};
  }
  /// Some elements of all of them.                                           // [blocks, count]
  VnniPanel elements(Index first, Index count) const {
    return {data + first, blocks, count, stride(shape)};
  }
};

/// Of a block's values (pairs/centers.hpp).
struct Moments {
  float squares = 0;  // sum_j |w_j|^2
  float fourths = 0;  // sum_j |w_j|^4
};

/// Both sides of is_local, of one query block.
struct RowTerms {
  float rounded = 0;
  float remaining = 0;
};

/// What pairs/centers.hpp decides by; with a normalizer also what a backward pass takes out.
struct Centers {
  Span<float> value;        // [value_dim]: mu, else 0
  Span<float> tokens;       // [key blocks]: n_b
  Span<Moments> moments;    // [key blocks]
  Span<float> sum_squares;  // [key blocks]: |sum_j v_j|^2
  Panel<float> value_sums;  // [key blocks, 2, value_dim]: mu and W_b
  Panel<float> mixed;       // [matrices, query blocks, value_dim]: W~_i
  Span<RowTerms> terms;     // [matrices, query blocks]
  // Of a backward pass with a normalizer:
  Span<Pair> paired_value;  // [halves of values]: mu
  Span<float> feature;      // [feature_dim]: zeta
  Panel<float> gradients;   // [matrices, query blocks, value_dim]: p_i

  static constexpr Index rows_at_once = 16;  // of W~

  Centers() = default;
  MHLA_ONCE_A_CALL Centers(Arena& arena, const Extents& e, bool sees_all, bool takes_out) {
    const Index rows = checked_mul(e.matrices, e.query_blocks);
    const auto take_rows = [&](Index count) {
      return panel(arena.take<float>(checked_mul(count, e.value_dim)).data, count, e.value_dim);
    };
    value = arena.take<float>(e.value_dim);
    tokens = arena.take<float>(e.key_blocks);
    moments = arena.take<Moments>(e.key_blocks);
    if (!sees_all) return;
    sum_squares = arena.take<float>(e.key_blocks);
    value_sums = take_rows(checked_mul(2, e.key_blocks));
    mixed = take_rows(rows);
    terms = arena.take<RowTerms>(rows);
    if (!takes_out) return;
    paired_value = arena.take<Pair>(pairs_of(e.value_dim));
    feature = arena.take<float>(e.feature_dim);
    gradients = take_rows(rows);
  }

  Panel<float> center_and_sum(Index b) const { return value_sums.row_range(2 * b, 2); }
  Span<float> sum(Index b) const { return {value_sums.row(2 * b + 1), value.size}; }
  Panel<float> sums(Index blocks) const {
    return {value_sums.row(1), blocks, value.size, 2 * value.size};
  }
};

/// Elements of each half that are mixed at once.
inline constexpr Index mixed_at_once = 64;

/// Panels of one tile. "Halves of features" are what PairedRows of them has.
struct PairPanels {
  Span<Pair> features;      // [pairs of tile tokens, feature_dim]: phi(k), or phi(q)
  Span<Pair> values;        // [pairs of tile tokens, value_dim]: v, or U
  Span<Pair> feature_rows;  // [tile tokens, halves of features]: phi(q), or phi(k)
  Span<Pair> value_rows;    // [tile tokens, halves of values]: U, or v
  Span<Pair> turned;        // [halves of features, value_dim]: dS of one block, or dP

  PairPanels() = default;
  MHLA_ONCE_A_CALL PairPanels(Arena& arena, const Extents& e, bool backward) {
    const Index tokens = e.tile_tokens;
    features = arena.take<Pair>(checked_mul(pairs_of(tokens), whole_columns(e.feature_dim)));
    values = arena.take<Pair>(checked_mul(pairs_of(tokens), whole_columns(e.value_dim)));
    feature_rows = arena.take<Pair>(checked_mul(tokens, pairs_of(e.feature_dim)));
    if (!backward) return;
    value_rows = arena.take<Pair>(checked_mul(tokens, pairs_of(e.value_dim)));
    turned = arena.take<Pair>(checked_mul(pairs_of(e.feature_dim), whole_columns(e.value_dim)));
  }
};

/// Panels of one tile and one group of rows; one for every slot.
struct PairScratch : PairPanels {
  Span<Pair> mixed;              // [group rows] of MixedSummaries: S~, S~^T, or dS^T; or one S~
  Span<float> summary;           // of one block: sums so far, or P
  Span<float> summary_gradient;  // of one block: dS~^T so far
  Span<float> tile;              // [tile tokens, value_dim or feature_dim]: numerators, dQ^r
  Span<float> mixed_sums;        // [2, group rows, mixed_at_once]
  Span<float> products;          // [Centers::rows_at_once, key blocks]: of centers.hpp
  // Under Causal:
  Span<Pair> columns;  // [halves of features or values, tile tokens]: transposes
  Span<Pair> scores;   // [tile tokens, pairs of tile tokens]
  Span<Pair> running;  // of one block: P in pairs of its rows
  PairPanels own;      // of a backward pass: the own block's keys, times m_ii in the query pass

  PairScratch() = default;
  MHLA_ONCE_A_CALL PairScratch(Arena& arena, const Extents& e, Index group_rows, const auto& needs)
      : PairPanels(arena, e, needs.is_backward) {
    const Index tokens = e.tile_tokens;
    const Index most_cols = whole_columns((std::max)(e.feature_dim, e.value_dim));
    const SummaryShape shape(e, needs.is_backward);
    const Index summary_size = checked_mul(2 * pairs_of(shape.rows), whole_columns(shape.cols));
    mixed = arena.take<Pair>(group_rows > 0 ? checked_mul(group_rows, MixedSummaries::stride(shape))
                                            : summary_size / 2);
    summary = arena.take<float>(summary_size);
    summary_gradient = arena.take<float>(needs.is_backward ? summary_size : 0);
    tile = arena.take<float>(checked_mul((std::max)(tokens, Index{2}), most_cols));
    mixed_sums = arena.take<float>(checked_mul(2 * mixed_at_once, group_rows));
    if (!needs.own_tiles && !needs.mixes_in_float)
      products = arena.take<float>(checked_mul(Centers::rows_at_once, e.key_blocks));
    if (!needs.own_tiles) return;
    columns = arena.take<Pair>(checked_mul(pairs_of(most_cols), whole_columns(tokens)));
    scores = arena.take<Pair>(checked_mul(tokens, pairs_of(tokens)));
    running = arena.take<Pair>(summary_size);
    if (needs.is_backward) own = PairPanels(arena, e, true);
  }
};

}  // namespace cpu

MHLA_NAMESPACE_END
