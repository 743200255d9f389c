// SPDX-License-Identifier: MIT
// The products of a forward pass (forward_unit.hpp) with Precision::fast: factors rounded to
// bfloat16, sums in float.
//
//   S_b   from rounded phi(k) and v, summed in float, then rounded: in pairs of blocks
//   S~_i  from rounded m_i and S, summed in float, then rounded: in pairs of features
//   y     from rounded phi(q) and S~, summed in float, divided, then rounded
//
// Key sums, denominators and whatever else is not a product of matrices are float.
#pragma once

#include <mhla/cpu/pairs/block_mixing.hpp>
#include <mhla/cpu/pairs/centers.hpp>
#include <mhla/cpu/pairs/heavy_tokens.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::pairs {

/// S of every key block, in the backward pass transposed.
template <class L>
PairedSummaries paired_summaries(const Unit<L, BFloat16>& unit) {
  return {unit.memory.paired_summaries.data, unit.keys.blocks, unit.plan.summary_shape()};
}

/// Sums S_b, with `centers` C_b, and z_b of one block, in float only if they are kept, have several
/// tiles or are centered.
template <class L>
void summarize_block(const Unit<L, BFloat16>& unit, Index b, const Centers* centers,
                     const KeptSummaries<float>& kept, const SlotScratch<float>& scratch) {
  const BlockSpan& block = unit.keys[b];
  const PairedSummaries summaries = paired_summaries(unit);
  const bool keeps = kept.whole.summaries.rows > 0;
  const bool not_transposed = unit.orientation() == Orientation::not_transposed;
  // What rounding_shows asks for.
  const bool sums_up = not_transposed && !is_causal<L> && !kept.alone;
  const Span<float> key_sum = unit.summaries.key_sum(b);
  const Panel<float> sums = summaries.shape.sums(scratch.pairs.summary);
  if (block.tiles == 0) set_zero(sums, key_sum);
  for (Index i = 0; i < block.tiles; ++i) {
    const TokenTile& tile = unit.keys.table.tiles[block.first_tile + i];
    const bool last = i + 1 == block.tiles;
    Into into = i == 0 ? Into::overwrite : Into::add;
    const VnniPanel k = pack_keys(unit, tile, {key_sum, scratch.key_sum_rest}, into, scratch);
    const VnniPanel v = pack_values(unit, unit.keys, tile, scratch, scratch.pairs.values);
    if (centers != nullptr) {
      const Panel<float> rows = whole_panel(scratch.pairs.tile.data, 2, k.cols);
      multiply(rows.row_range(0, 1), LeftFactor::ones(tile.tokens), k, into);
      if (last) {
        subtract_means(*centers, b, rows.col_range(0, k.cols), sums.col_range(0, k.cols), into);
        into = Into::add;
      }
    }
    if (sums_up) add_values(v, tile.tokens, into, scratch.pairs);
    const LeftFactor a = (not_transposed ? k : v).transposed();
    const VnniPanel& other = not_transposed ? v : k;
    Prefetch next = prefetch_tile(unit.keys, block.first_tile + i + 1,
                                  {unit.key_rows(unit.operands.k), unit.key_rows(unit.operands.v)});
    if (!last || keeps) {
      multiply(sums, a, other, into, &next);
    } else {
      multiply(summaries.half(b, into == Into::add ? sums : Panel<float>{}), a, other, &next);
    }
  }
  if (sums_up) {
    const Centers& of_values = unit.memory.centers;
    of_values.tokens[b] = static_cast<float>(block.tokens);
    of_values.moments[b] = {};
    if (block.tiles == 0) std::fill_n(scratch.pairs.tile.data, of_values.value.size, 0.0f);
    keep_value_sum(of_values, b, scratch.pairs);
  }
  if ((block.tiles == 0 || keeps) && !kept.alone) finish(summaries.half(b), sums);
  if (keeps) kept.keep(b, sums, unit.extents().value_dim, key_sum);
}

/// Calls sum_up(b, scratch) for every key block, whose sums are in pairs then unless the call mixes
/// in float.
template <class L, class SumUp>
void for_each_key_block(const Unit<L, BFloat16>& unit, const ExecutorRef& loop,
                        const SumUp& sum_up) {
  loop.parallel_for(pairs_of(unit.keys.blocks), [&](Index pair, Index slot) {
    for (Index b = 2 * pair; b < (std::min)(2 * pair + 2, unit.keys.blocks); ++b)
      sum_up(b, unit.plan.scratch[slot]);
    if (unit.in_pairs) paired_summaries(unit).complete(2 * pair, is_causal<L>);
  });
}

/// S_b, with `centers` C_b, and z_b of every key block.
template <class L>
void summarize_unit(const Unit<L, BFloat16>& unit, const Centers* centers,
                    const KeptSummaries<float>& kept, const ExecutorRef& loop) {
  for_each_key_block(unit, loop, [&](Index b, const SlotScratch<float>& scratch) {
    summarize_block(unit, b, centers, kept, scratch);
  });
}

/// S~_i of a group of query blocks or dS_b^T of one of key blocks, in the scratch of a slot: what
/// `mixing` makes of summaries_of(matrix), summed over matrices of the unit.
template <class L>
MixedSummaries mix_blocks(const Unit<L, BFloat16>& unit, const RoundedRows& mixing,
                          const SummaryRows<float>& group, Triangle triangle, Index first_matrix,
                          Index matrices, const auto& summaries_of, const PairScratch& scratch) {
  const Index parts = unit.plan.rounded.parts;
  const Index rows = group.summaries.rows;
  const MixedSummaries mixed{scratch.mixed.data, rows, unit.plan.summary_shape()};
  if (matrices == 0)  // no query head reads this kv head
    std::fill_n(mixed.data, rows * MixedSummaries::stride(mixed.shape), Pair{0});
  if (matrices == 0) return mixed;
  const auto terms_of = [&](Index index) {
    const PairedSummaries from = summaries_of(first_matrix + index / parts);
    const Index matrix = unit.matrix_of(first_matrix + index / parts);
    return MixingTerms{mixing.of(index % parts, matrix, group.first, rows, from.blocks), from,
                       mixing.scales_of(matrix, group.first)};
  };
  mix(mixed, matrices * parts, terms_of, !is_causal<L>, triangle, scratch.mixed_sums);
  return mixed;
}

/// S~ of a block in pairs of its rows, in the scratch of a slot.
inline VnniPanel round_summary(const Panel<const float>& summary, const PairScratch& scratch) {
  const Index half = pairs_of(summary.rows);
  const Panel<float> sums = whole_panel(scratch.summary.data, 2 * half, summary.cols);
  set_zero(sums);
  for (Index r = 0; r < summary.rows; ++r) copy_row(sums.row(r), summary.row(r), summary.cols);
  const VnniPanel rounded{scratch.mixed.data, half, summary.cols, sums.stride};
  pair_sums(rounded, sums.row_range(0, half), sums.row_range(half, half));
  return rounded;
}

/// num += tril(Q^r (m_ii K^r)^T) V: a tile's own keys. Where one token has most of |v|^2 so far,
/// the rounding of its score, which would not average out, is taken back.
inline void read_out_own_tile(const PairedRows& queries, const Panel<const float>& rotated,
                              const OwnTile<float>& own, const PairScratch& scratch,
                              const Panel<float>& numerators) {
  const Index tokens = own.rotated.rows;
  const VnniPanel values = pair_panel(scratch.values.data, tokens, numerators.cols);
  const PairedRows scores = multiply_scores(
      scratch.scores, queries, pair_panel(scratch.columns.data, own.rotated.cols, tokens));
  add_triangle(numerators, scores, values, {1});
  const auto square_of = [&](Index t) { return own.scores.row(0)[t]; };
  for_each_heavy_token(tokens, 1, square_of, [&](Index t, Index heavy) {
    const auto* const rounded = reinterpret_cast<const BFloat16*>(scores.row(t));
    const float lost =
        inner_product<float>(rotated.row_range(t, 1), own.rotated.row_range(heavy, 1)) -
        load(rounded[heavy]);
    take_back(lost, {numerators.row(t), numerators.cols},
              [&](Index c) { return element_of(values, heavy, c); });
  });
}

template <class L>
struct Forward {
  using Variant = L;
  using Scalar = BFloat16;
  using A = float;
  using Tile = QueryTile<float, VnniPanel>;
  /// z~ and S~ of a group of query blocks, or dz and dS of one of key blocks.
  struct Mixtures : SummaryRows<float> {  // S~ in it, too, if it is mixed in float
    MixedSummaries paired{};
  };

  const Unit<L, BFloat16>& unit;

  /// S~ of a group of query blocks in pairs.
  MixedSummaries mix(const Mixtures& group, Index matrix, const PairScratch& scratch) const {
    return mix_blocks(
        unit, unit.plan.rounded.queries, group, {group.first + 1 - lag_of(sight_of<L>)}, matrix, 1,
        [&](Index) { return paired_summaries(unit); }, scratch);
  }
  /// S~ of a block.
  VnniPanel summary(const Mixtures& mixed, Index block, const SlotScratch<float>& scratch) const {
    if (!unit.in_pairs) return round_summary(mixed.summary(block), scratch.pairs);
    return mixed.paired.data == nullptr ? VnniPanel{} : mixed.paired.of(block - mixed.first);
  }

  /// Packs a query tile's own keys and values: m_ii phi(k) transposed, v, and in the first row of
  /// scores |v|^2.
  void pack_own_tile(Tile& at) const {
    const SlotScratch<float>& scratch = at.scratch;
    const TokenTile& tile = at.tile();
    OwnTile<float>& own = at.own;
    transposed(pair_features(own.rotated, scratch.pairs.feature_rows), scratch.pairs.columns);
    const VnniPanel packed = pack_values(unit, unit.queries, tile, scratch, scratch.pairs.values);
    const Span<float> zeros{scratch.own.values.data, unit.extents().value_dim};
    std::fill_n(zeros.data, zeros.size, 0.0f);
    with_values(
        unit, unit.queries, tile, scratch, [&]<class Stored>(const Rows<const Stored>& rows) {
          pair_functions_of<Stored>().row_distances(rows, tile.tokens, zeros, own.scores.row(0));
        });
    leave_out_non_finite({own.scores.row(0), tile.tokens}, zeros.size,
                         [&](Index t, Index c) { return element_of(packed, t, c); });
  }
  /// Adds the tile to P, which later tiles of its block read.
  void absorb_own_tile(Tile& at) const {
    const PairScratch& scratch = at.scratch.pairs;
    absorb(pair_tokens(at.own.rotated, scratch.features),
           pair_panel(scratch.values.data, at.tile().tokens, unit.extents().value_dim), at);
  }
  /// P += a^T b, in float, and again in pairs of its rows. The first tile of a block takes up its
  /// mixed summary.
  static void absorb(const VnniPanel& a, const VnniPanel& b, Tile& at) {
    const Index half = at.summary.pairs;
    const Panel<float> sums = whole_panel(at.scratch.pairs.summary.data, 2 * half, b.cols);
    const Panel<float> lower = sums.row_range(0, half);
    const Panel<float> upper = sums.row_range(half, half);
    if (at.part() == 0)
      pair_functions<float>().unpair(at.summary, lower.data, upper.data, sums.stride);
    multiply(sums.row_range(0, a.cols), a.transposed(), b, Into::add);
    at.summary = {at.scratch.pairs.running.data, half, b.cols, sums.stride};
    pair_sums(at.summary, lower, upper);
  }

  /// y of a tile of query head g.
  void read_out(const Tile& at, Index g, const TensorView<BFloat16, 4>& y) const {
    const Extents& e = unit.extents();
    const BlockTable& table = unit.queries.table;
    const TokenTile& tile = at.tile();
    const PairScratch& scratch = at.scratch.pairs;
    const TokenRows<const BFloat16> queries = unit.query_rows(g, unit.operands.q);
    const TokenRows<BFloat16> results = unit.query_rows(g, y);
    const auto [rotated, denominators] = pack_queries(unit, at, g);
    Prefetch next = prefetch_tile(unit.queries, at.index + 1, {queries, results});
    const Span<float> inverses{at.scratch.inverses.data, denominators.size};
    const bool invertible = invert<float>(denominators, inverses);
    const bool stores = invertible && is_in_place<float>(results);
    const PairProduct stored = stored_in(in_place(table, tile, results), e.value_dim, inverses);
    if (!is_causal_within_block<L> && stores) return multiply(stored, rotated, at.summary, &next);
    const Panel<float> sums = whole_panel(scratch.tile.data, tile.tokens, e.value_dim);
    const Panel<float> out = sums.col_range(0, e.value_dim);
    multiply(sums, rotated, at.summary, Into::overwrite, &next);
    if constexpr (is_causal_within_block<L>)
      read_out_own_tile(rotated, panel(at.scratch.rotated.data, tile.tokens, e.feature_dim), at.own,
                        scratch, out);
    if (stores) return finish(stored, sums);
    if (!invertible) divide_rows<float>(out, denominators);
    scatter<BFloat16, float>(table, tile, out, invertible ? inverses : Span<float>{}, results,
                             Update::overwrite);
  }
};

}  // namespace cpu::pairs

MHLA_NAMESPACE_END
