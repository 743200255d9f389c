// SPDX-License-Identifier: MIT
// The memory of a call: scratch of every executor slot, and of every unit in progress, all in the
// workspace of the call.
#pragma once

#include <mhla/cpu/pairs/memory.hpp>
#include <mhla/cpu/quadratic/scores.hpp>
#include <mhla/cpu/readout.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// What determines the memory of a call.
struct Needs {
  bool mixed_key_sums = false;
  bool mixed_products = false;
  bool own_tiles = false;  // of causal queries
  bool is_backward = false;
  bool quadratic = false;       // the path (quadratic/); it needs nothing else of this
  bool pairs = false;           // Precision::fast
  bool mixes_in_float = false;  // with pairs, in a stage or by a structured mixing: S and S~ are
                                // float, and S~ is rounded for the readout alone
  bool rotates = false;
  bool sums = false;  // S, and dS~ of a backward pass: otherwise they are the caller's
  // Of a structured mixing's work array, and of its list; 0 of a dense one.
  Index mixing_rows = 0;
  Index mixing_products = 0;

  bool factored() const { return mixing_products > 0; }
  /// Whether summaries and what is mixed of them are in pairs.
  bool mixes_pairs() const { return pairs && !mixes_in_float; }
  /// Whether a unit may also need memory for the exact pass (pairs/centers.hpp).
  bool may_be_exact() const { return !mixes_pairs() || is_backward || !own_tiles; }
  bool normalizer() const { return mixed_key_sums || mixed_products; }
  /// Whether denominators have features of their own: those before the rotation.
  bool unrotated_too() const { return normalizer() && rotates; }
};

/// Panels of one tile.
template <class A>
struct TilePanels {
  Span<A> features;        // [tile tokens, feature_dim]: phi, or R phi if only that is needed
  Span<A> rotated;         // R phi: `features` itself unless phi is needed, too
  Span<A> values;          // [tile tokens, value_dim]: v, or numerators and y, or dy and U
  Span<A> grad_features;   // [tile tokens, whole columns]: of the rotated features
  Span<A> grad_unrotated;  // [tile tokens, feature_dim]: of the normalizer's, under Causal
  Span<A> grad_values;     // [tile tokens, whole columns]

  TilePanels() = default;
  MHLA_ONCE_A_CALL TilePanels(Arena& arena, const Extents& e, const Needs& needs) {
    features = arena.take<A>(checked_mul(e.tile_tokens, e.feature_dim));
    rotated = needs.unrotated_too() ? arena.take<A>(features.size) : features;
    values = arena.take<A>(checked_mul(e.tile_tokens, e.value_dim));
    if (!needs.is_backward) return;
    grad_features = arena.take<A>(checked_mul(e.tile_tokens, whole_columns(e.feature_dim)));
    grad_unrotated = arena.take<A>(needs.normalizer() && needs.own_tiles ? features.size : 0);
    grad_values = arena.take<A>(checked_mul(e.tile_tokens, whole_columns(e.value_dim)));
  }
};

/// Panels of the keys of a causal query tile's own block; gradients are divided by m_ii.
template <class A>
struct OwnTileScratch : TilePanels<A> {
  Span<A> key_sums;        // [tile tokens, feature_dim]: p_t
  Span<A> scores;          // [tile tokens, tile tokens]
  Span<A> grad_summaries;  // [matrices, whole pairs of values, whole columns]: dP^T
  Span<A> grad_running;    // [matrices, feature_dim]: w

  OwnTileScratch() = default;
  MHLA_ONCE_A_CALL OwnTileScratch(Arena& arena, const Extents& e, const Needs& needs) {
    if (!needs.own_tiles) return;
    TilePanels<A>::operator=({arena, e, needs});
    key_sums = arena.take<A>(needs.normalizer() ? this->features.size : 0);
    scores = arena.take<A>(checked_mul(e.tile_tokens, e.tile_tokens));
    if (!needs.is_backward) return;
    const Index size = checked_mul(2 * pairs_of(e.value_dim), whole_columns(e.feature_dim));
    grad_summaries = arena.take<A>(checked_mul(e.matrices, size));
    grad_running = arena.take<A>(needs.normalizer() ? checked_mul(e.matrices, e.feature_dim) : 0);
  }

  /// dP^T of one matrix: what later tiles have left.
  Panel<A> grad_summary(const Extents& e, Index matrix) const {
    const Index stride = whole_columns(e.feature_dim);
    A* const data = grad_summaries.data + matrix * 2 * pairs_of(e.value_dim) * stride;
    return {data, e.value_dim, e.feature_dim, stride};
  }
};

/// Buffers for the rows of a tile that cannot be processed in place: before phi, and their
/// gradients.
template <class A>
struct RowBuffers {
  Span<A> input;     // [tile tokens, key_dim]
  Span<A> gradient;  // [tile tokens, key_dim]
};

/// Panels of one tile and one group of rows; one for every slot.
template <class A>
struct SlotScratch : TilePanels<A> {
  Span<A> denominators;       // [tile tokens]
  Span<A> inverses;           // [tile tokens]: 1 / den
  Span<A> grad_denominators;  // [tile tokens]
  Span<A> mixed_summaries;    // [group rows, feature_dim * value_dim]: S~, or dS; not in pairs
  Span<A> mixed_key_sums;     // [group rows, feature_dim]: z~, or dz
  Span<A> key_sum_rest;       // [feature_dim]: of the CompensatedSum of a block's key sum
  Span<A> triangle;           // [columns of dM, columns of dM]: if queries see only some
  Span<A> transposed;         // [feature_dim, value_dim]: dS of one block
  RowBuffers<A> row;
  OwnTileScratch<A> own;
  PairScratch pairs;
  quadratic::Scratch<A> quadratic;

  MHLA_ONCE_A_CALL SlotScratch(Arena& arena, const Extents& e, Index key_dim, Index group_rows,
                               const Needs& needs)
      : TilePanels<A>(arena, e, needs), own(arena, e, needs) {
    denominators = arena.take<A>(needs.normalizer() ? e.tile_tokens : 0);
    inverses = arena.take<A>(denominators.size);
    grad_denominators = arena.take<A>(needs.normalizer() && needs.is_backward ? e.tile_tokens : 0);
    mixed_summaries =
        arena.take<A>(needs.may_be_exact() ? checked_mul(group_rows, e.summary_stride()) : 0);
    mixed_key_sums = arena.take<A>(needs.normalizer() ? checked_mul(group_rows, e.feature_dim) : 0);
    key_sum_rest = arena.take<A>(needs.normalizer() ? e.feature_dim : 0);
    const Index columns = (std::min)(e.key_blocks, matrix_gradient_cols(e.key_blocks));
    triangle = arena.take<A>(needs.is_backward ? columns * columns : 0);
    transposed = arena.take<A>(needs.is_backward ? e.summary_size() : 0);
    row.input = arena.take<A>(checked_mul(e.tile_tokens, key_dim));
    row.gradient = arena.take<A>(needs.is_backward ? row.input.size : 0);
    if (needs.quadratic) quadratic.lay_out(arena, e, needs.unrotated_too());
  }

  MHLA_ONCE_A_CALL void lay_out_pairs(Arena& arena, const Extents& e, Index group_rows,
                                      const Needs& needs) {
    pairs = PairScratch(arena, e, needs.mixes_in_float ? 0 : group_rows, needs);
  }
};

/// Summaries and key sums of consecutive blocks, one block per row: S and z of key blocks, S~ and
/// z~ of a group of query blocks, and their gradients.
template <class A>
struct SummaryRows {
  Panel<A> summaries;     // [rows, feature_dim * value_dim]
  Panel<A> key_sums;      // [rows, feature_dim]; no columns if the normalizer needs none
  Index first = 0;        // the block of row 0
  Index matrix_rows = 0;  // of one summary
  Index matrix_cols = 0;

  SummaryRows() = default;
  SummaryRows(A* summary_data, A* key_sum_data, const Extents& e, Orientation orientation,
              Index first_block, Index rows, bool with_key_sums)
      : summaries{summary_data, rows, e.summary_size(), e.summary_stride()},
        key_sums(panel(key_sum_data, rows, with_key_sums ? e.feature_dim : 0)),
        first(first_block),
        matrix_rows(orientation == Orientation::not_transposed ? e.feature_dim : e.value_dim),
        matrix_cols(orientation == Orientation::not_transposed ? e.value_dim : e.feature_dim) {}

  /// Elements of `blocks` rows.
  static Index size(const Extents& e, Index blocks, bool with_key_sums) {
    return checked_mul(blocks, checked_add(e.summary_stride(), with_key_sums ? e.feature_dim : 0));
  }
  /// Some of the rows, of which the first is block 0.
  SummaryRows row_range(Index begin, Index count) const {
    SummaryRows some = *this;
    some.summaries = summaries.row_range(begin, count);
    some.key_sums = key_sums.row_range(begin, count);
    some.first = 0;
    return some;
  }
  Panel<A> summary(Index block) const {
    return panel(summaries.row(block - first), matrix_rows, matrix_cols);
  }
  Span<A> key_sum(Index block) const { return {key_sums.row(block - first), key_sums.cols}; }
};

/// Where a forward state keeps the summaries of a unit that has some of a head's value columns.
template <class A>
struct KeptSummaries {
  SummaryRows<A> whole;  // of the head; no rows: nothing is kept
  Index first_column;
  bool alone = false;  // they are the unit's own, and nothing is rounded

  void keep(Index b, const Panel<const A>& sums, Index columns, Span<const A> key_sum) const {
    Panel<A> to = whole.summary(b);
    if (!alone) to = to.col_range(first_column, columns);
    for (Index r = 0; r < to.rows; ++r) copy_row(to.row(r), sums.row(r), to.cols);
    if (first_column == 0 && !alone) copy_row(whole.key_sum(b).data, key_sum.data, key_sum.size);
  }
};

/// Memory of one unit in progress.
template <class A>
struct UnitMemory {
  Span<A> summaries;  // [key blocks] of SummaryRows: S, then z
  // Instead of S and of dS~, with Precision::fast, of PairedSummaries:
  Span<Pair> paired_summaries;   // [pairs of key blocks]
  Span<Pair> paired_gradients;   // [matrices, pairs of query blocks]
  Centers centers;               // not of a causal forward pass
  Span<A> grad_mixed_summaries;  // [matrices, query blocks, feature_dim * value_dim]: dS~
  Span<A> grad_mixed_key_sums;   // [matrices, query blocks, feature_dim]: dz~
  // Structured mixings only, whose list takes one matrix after the other; key sums likewise:
  Span<MixingProduct> mixing_products;
  Span<A> mixed;       // of SummaryRows, the work array from S~ on
  Span<A> grad_mixed;  // of SummaryRows, the gradients of all of it, instead of dS~ and dz~
  // The call's partial sum of dmix that the unit adds to, [matrices, elements of a matrix]; no rows
  // if dmix is not wanted:
  Panel<A> grad_mixing{};
  // What one pass over the queries leaves for the next, under MixedProduct and under Causal:
  Span<A> denominators;       // [group_size, blocks, block tokens]; later MixedProduct's dR
  Span<A> grad_denominators;  // [group_size, blocks, block tokens]: C
  // MixedProduct only:
  Span<A> products;       // [group_size, blocks, block tokens]: R
  Span<A> grad_features;  // [group_size, query tokens, feature_dim]: dQ^r, until dR is known
  Span<A> grad_key_sums;  // [key blocks, feature_dim]: dz
  quadratic::Memory<A> quadratic;  // instead of all of the above but grad_mixing

  MHLA_ONCE_A_CALL UnitMemory(Arena& arena, const Extents& e, const Needs& needs) {
    if (needs.quadratic) {
      quadratic.lay_out(arena, e, needs.unrotated_too(), needs.is_backward);
      return;
    }
    const Index offsets = checked_mul(e.group_size, checked_mul(e.query_blocks, e.block_tokens));
    if (needs.may_be_exact() && needs.sums) {
      summaries = arena.take<A>(SummaryRows<A>::size(e, e.key_blocks, needs.normalizer()));
    } else if (needs.mixes_pairs()) {
      summaries = arena.take<A>(needs.normalizer() ? checked_mul(e.key_blocks, e.feature_dim) : 0);
    }
    if (needs.factored()) {
      mixing_products = arena.take<MixingProduct>(needs.mixing_products);
      const Index others = needs.mixing_rows - e.key_blocks;
      mixed = arena.take<A>(SummaryRows<A>::size(e, others, needs.normalizer()));
      if (needs.is_backward)
        grad_mixed = arena.take<A>(SummaryRows<A>::size(e, needs.mixing_rows, needs.normalizer()));
    } else if (needs.is_backward && needs.sums) {
      const Index rows = checked_mul(e.matrices, e.query_blocks);
      grad_mixed_summaries =
          arena.take<A>(needs.may_be_exact() ? checked_mul(rows, e.summary_stride()) : 0);
      grad_mixed_key_sums =
          arena.take<A>(needs.mixed_key_sums ? checked_mul(rows, e.feature_dim) : 0);
    }
    if (needs.mixed_products || (needs.own_tiles && needs.normalizer() && needs.is_backward))
      denominators = arena.take<A>(offsets);
    if (denominators.size > 0 && needs.is_backward) grad_denominators = arena.take<A>(offsets);
    if (needs.mixed_products) {
      products = arena.take<A>(offsets);
      if (needs.is_backward) {
        grad_features =
            arena.take<A>(checked_mul(checked_mul(e.group_size, e.query_tokens), e.feature_dim));
        grad_key_sums = arena.take<A>(checked_mul(e.key_blocks, e.feature_dim));
      }
    }
  }

  MHLA_ONCE_A_CALL void lay_out_pairs(Arena& arena, const Extents& e, const Needs& needs) {
    if (needs.mixes_in_float) {
      if (needs.is_backward) centers = Centers(arena, e, false, false);
      return;
    }
    const SummaryShape shape(e, needs.is_backward);
    paired_summaries = arena.take<Pair>(PairedSummaries::size(shape, e.key_blocks));
    if (needs.is_backward || !needs.own_tiles)
      centers = Centers(arena, e, !needs.own_tiles, needs.is_backward && needs.normalizer());
    if (needs.is_backward)
      paired_gradients =
          arena.take<Pair>(checked_mul(e.matrices, PairedSummaries::size(shape, e.query_blocks)));
  }
};

}  // namespace cpu

MHLA_NAMESPACE_END
