// SPDX-License-Identifier: MIT
// The forward pass of one unit with Precision::fast: the stages of forward_unit.hpp, whose products
// have factors rounded to bfloat16 and sums in float.
//
//   S_b   from rounded phi(k) and v, summed in float, then rounded: pairs of blocks
//   S~_i  from rounded m_i and S, summed in float, then rounded: pairs of features
//   y     from rounded phi(q) and S~, summed in float, divided, then rounded
//
// Key sums, denominators and whatever else is not a product of matrices are float.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/forward_unit.hpp>
#include <mhla/cpu/pairs/memory.hpp>
#include <mhla/cpu/pairs/panel.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {
namespace pairs {

/// S_b and S_b+1, b even, in pairs.                                   // [feature_dim, value_dim]
inline PairPanel summary_pair(const Extents& e, const UnitMemory<float>& memory, Index pair) {
  return {memory.paired_summaries.data + pair * paired_summary_stride(e), e.feature_dim,
          e.value_dim, e.value_dim};
}
/// Columns [first, first + count) of one half of all of them, as rows.
inline PairPanel summary_columns(const Extents& e, const UnitMemory<float>& memory, Index blocks,
                                 Index first, Index count) {
  return {memory.paired_summaries.data + first, pairs_of(blocks), count,
          paired_summary_stride(e)};
}
/// S~ of row `row` of a group.                                          // [feature_dim, value_dim]
inline PairPanel mixed_summary(const Extents& e, const PairScratch& scratch, Index row) {
  return {scratch.mixed.data + row * paired_mixed_stride(e), pairs_of(e.feature_dim), e.value_dim,
          e.value_dim};
}

/// The values of a tile, in pairs of tokens.
template <class L>
PairPanel pack_values(const Operands<L, BFloat16>& operands, const BlockTable& table,
                      const TokenTile& tile, const TokenRows<const BFloat16>& values,
                      const SlotScratch<float>& scratch) {
  const PairPanel panel =
      pair_panel(scratch.pairs.values.data, tile.tokens, operands.plan.extents.value_dim);
  if (is_in_place<float>(values)) {
    pair_rows<BFloat16>(panel, tile.tokens, in_place(table, tile, values));
  } else {
    const Rows<const float> rows =
        readable_rows<BFloat16, float>(table, tile, values, scratch.values);
    pair_rows<float>(panel, tile.tokens, rows);
  }
  return panel;
}

/// Rotated features of a tile, in pairs of tokens.
inline PairPanel pair_tokens(const Panel<float>& rotated, Span<Pair> memory) {
  const PairPanel panel = pair_panel(memory.data, rotated.rows, rotated.cols);
  pair_rows<float>(panel, rotated.rows, rotated.placed());
  return panel;
}
/// The same, in pairs of features.
inline PairedRows pair_features(const Panel<float>& rotated, Span<Pair> memory) {
  const PairedRows rows = paired_rows(memory.data, rotated.rows, rotated.cols);
  pair_columns<float>(rows, rotated.placed());
  return rows;
}

/// Whether features are packed in one step, without a panel of floats.
template <class L>
bool maps_into_pairs(const Operands<L, BFloat16>& operands, const TokenRows<const BFloat16>& rows) {
  return ElementwiseFeatureMap<typename L::FeatureMapType> && !operands.plan.rotation.rotates() &&
         is_in_place<float>(rows) && rows.dim >= 32 && rows.dim % 2 == 0;
}

/// phi(k) of a tile, rotated, in pairs of tokens; adds phi(k) to the block's key sum.
template <class L>
PairPanel pack_keys(const Operands<L, BFloat16>& operands, const TokenTile& tile,
                    const TokenRows<const BFloat16>& keys, const LongSum<float>& key_sum, Into into,
                    const SlotScratch<float>& scratch) {
  const BlockTable& table = operands.plan.tables.keys;
  if constexpr (ElementwiseFeatureMap<typename L::FeatureMapType>)
    if (maps_into_pairs(operands, keys)) {
      const PairPanel panel = pair_panel(scratch.pairs.keys.data, tile.tokens, keys.dim);
      if (into == Into::overwrite) key_sum.clear();
      map_pair_rows(operands.variant.feature_map, panel, tile.tokens, in_place(table, tile, keys),
                    key_sum.sum);
      return panel;
    }
  const FeaturePanels<float> k = pack_tile(operands, 1.0f, table, tile, keys, scratch);
  if (normalizes<L>) add_rows(key_sum, 1.0f, k.features, into);
  return pair_tokens(k.rotated, scratch.pairs.keys);
}

/// phi(q) of a tile, rotated, in pairs of features, and its denominators.
struct PackedQueries {
  PairedRows rotated;
  Span<const float> denominators;
};
template <class L>
PackedQueries pack_queries(const Operands<L, BFloat16>& operands, const Unit<float>& unit,
                              const QueryTile<float>& at, Index g) {
  const Plan<L, float>& plan = operands.plan;
  const TokenTile& tile = plan.tables.queries.tiles[at.index];
  const TokenRows<const BFloat16> queries = query_rows(plan, unit, g, operands.q);
  if constexpr (ElementwiseFeatureMap<typename L::FeatureMapType> && !masks_own_block<L> &&
                !mixes_products<L>)
    if (maps_into_pairs(operands, queries)) {
      const PairedRows rows =
          paired_rows(at.scratch.pairs.queries.data, tile.tokens, queries.dim);
      const Span<float> denominators{at.scratch.denominators.data,
                                     normalizes<L> ? tile.tokens : Index{0}};
      map_pair_columns(operands.variant.feature_map, operands.scale(), rows,
                       in_place(plan.tables.queries, tile, queries), Span<const float>(at.mixed.key_sum(at.block)),
                       denominators);
      if constexpr (normalizes<L>)
        for (Index t = 0; t < tile.tokens; ++t)
          denominators[t] += static_cast<float>(operands.variant.normalizer.epsilon);
      return {rows, denominators};
    }
  const FeaturePanels<float> q = pack_query_tile(operands, unit, g, tile, at.scratch);
  return {pair_features(q.rotated, at.scratch.pairs.queries),
          tile_denominators(operands, unit, at, g, q.features)};
}

/// Where a forward state keeps the summaries of a unit that has some of a head's value columns.
struct KeptSummaries {
  SummaryRows<float> whole;  // of the head; no rows: nothing is kept
  Index first_column;
};

/// S_b and z_b of every key block.
template <class L>
void summarize_unit(const Operands<L, BFloat16>& operands, const Unit<float>& unit,
                    const KeptSummaries& kept, const ExecutorRef& loop) {
  const Plan<L, float>& plan = operands.plan;
  const Extents& e = plan.extents;
  const BlockTable& table = plan.tables.keys;
  const TokenRows<const BFloat16> keys = key_rows(unit, operands.k);
  const TokenRows<const BFloat16> values = key_rows(unit, operands.v);
  const Index all = e.feature_dim * e.value_dim;
  const bool keeps = kept.whole.summaries.rows > 0;
  const auto summarize_block = [&](Index b, const SlotScratch<float>& scratch) {
    const BlockSpan& block = table.blocks[unit.keys.first_block + b];
    const PairPanel summary = summary_pair(e, unit.memory, b / 2);
    const int half = static_cast<int>(b % 2);
    const Panel<float> sums = whole_panel(scratch.pairs.sums.data, e.feature_dim, e.value_dim);
    if (half == 0)  // what is mixed in whole vectors, and the partner of an odd last feature
      std::fill_n(summary.data + all, paired_summary_stride(e) - all, Pair{0});
    if (block.tiles == 0) clear(sums, unit.summaries.key_sum(b));
    for (Index i = 0; i < block.tiles; ++i) {
      const TokenTile& tile = table.tiles[block.first_tile + i];
      const Into into = i == 0 ? Into::overwrite : Into::add;
      const LeftFactor k_transposed = LeftFactor::transposed(
          pack_keys(operands, tile, keys, {unit.summaries.key_sum(b), scratch.key_sum_rest}, into,
                    scratch));
      const PairPanel v = pack_values(operands, table, tile, values, scratch);
      Prefetch next =
          prefetch_tile(table, unit.keys, block.first_tile + i + 1, {keys, values});
      if (i + 1 < block.tiles || keeps) {
        multiply(sums, k_transposed, v, into, &next);
      } else {
        multiply_into_half(summary, half, k_transposed, v, i == 0 ? Panel<float>{} : sums, &next);
      }
    }
    if (block.tiles == 0 || keeps) round_into_half(summary, half, sums);
    if (!keeps) return;
    const Panel<float> to = kept.whole.summary(b).col_range(kept.first_column, e.value_dim);
    for (Index r = 0; r < to.rows; ++r) copy_row(to.row(r), sums.row(r), to.cols);
    const Span<float> key_sum = unit.summaries.key_sum(b);
    if (kept.first_column == 0) copy_row(kept.whole.key_sum(b).data, key_sum.data, key_sum.size);
  };
  loop.parallel_for(pairs_of(unit.keys.blocks), [&](Index pair, Index slot) {
    for (Index b = 2 * pair; b < std::min(2 * pair + 2, unit.keys.blocks); ++b)
      summarize_block(b, plan.slots[slot]);
    if constexpr (sees_past_only<L>)
      unit.memory.infinite_pairs[pair] = !all_finite(
          {summary_pair(e, unit.memory, pair).data, 1, paired_summary_stride(e), 0});
  });
}

/// S~_i of a group of query blocks, in the scratch of a slot.
template <class L>
void mix_group(const Plan<L, float>& plan, const Unit<float>& unit, Index matrix,
               const RowGroups& groups, Index group, const PairScratch& scratch) {
  const Extents& e = plan.extents;
  const Index first = groups.begin(group);
  const Index rows = groups.size(group);
  const PairedRows all = plan.paired_mixing_of(
      unit.kv_head * e.group_size + matrix, unit.queries.blocks, unit.keys.blocks);
  const LeftFactor mixing = PairedRows{all.row(first), rows, all.cols, all.stride};
  const Index half = paired_half_size(e);  // lower and upper halves of a pair are that far apart
  const Index stride = paired_mixed_stride(e);
  bool finite = true;  // what a strip of rows may read
  if constexpr (sees_past_only<L>)
    for (Index pair = 0; pair < pairs_of(std::min(first + rows, unit.keys.blocks)); ++pair)
      finite &= unit.memory.infinite_pairs[pair] == 0;
  for (Index col = 0; col < half; col += mixed_columns) {
    const Index cols = std::min(mixed_columns, whole_columns(half - col));
    const PairPanel summaries = summary_columns(e, unit.memory, unit.keys.blocks, col, cols);
    const PairPanel mixed{scratch.mixed.data + col, rows, cols, stride};
    if constexpr (sees_past_only<L>) {
      const Triangle past{first + 1 - lag_of(sight_of<L>)};
      if (finite) {
        for_each_strip(mixing, summaries, past,
                       [&](Index row, const LeftFactor& strip, const PairPanel& seen) {
                         multiply_into_pairs({mixed.row(row), strip.rows, cols, stride}, strip,
                                             seen, half, nullptr);
                       });
        continue;
      }
      for (Index row = 0; row < rows; ++row) {
        const LeftFactor one = mixing.range(row, 1, 0, mixing.pairs);
        const Panel<float> lower{scratch.triangle.data, 1, cols, mixed_columns};
        const Panel<float> upper{lower.row(1), 1, cols, mixed_columns};
        const Triangle seen{past.first + row};
        multiply_triangle(lower, one, summaries, 0, seen, Into::overwrite);
        multiply_triangle(upper, one,
                          summary_columns(e, unit.memory, unit.keys.blocks, half + col, cols), 0,
                          seen, Into::overwrite);
        pair_sums({mixed.row(row), 1, cols, stride}, lower, upper);
      }
    } else {
      Prefetch ahead(nullptr, summaries.pairs);
      for (const Index at : {Index{0}, half})
        if (col + cols < half)
          ahead.add(summaries.data + at + cols, summaries.stride * 4, cols * 4);
      multiply_into_pairs(mixed, mixing, summaries, half, &ahead);
    }
  }
}

/// y of a tile of query head g. `summary` is S~, under Causal P.
template <class L>
void read_out_tile(const Operands<L, BFloat16>& operands, const Unit<float>& unit,
                   const QueryTile<float>& at, Index g, const PairPanel& summary,
                   const TensorView<BFloat16, 4>& y) {
  const Plan<L, float>& plan = operands.plan;
  const Extents& e = plan.extents;
  const BlockTable& table = plan.tables.queries;
  const TokenTile& tile = table.tiles[at.index];
  const PairScratch& scratch = at.scratch.pairs;
  const TokenRows<const BFloat16> queries = query_rows(plan, unit, g, operands.q);
  const TokenRows<BFloat16> results = query_rows(plan, unit, g, y);
  const auto [rotated, denominators] = pack_queries(operands, unit, at, g);
  Prefetch next = prefetch_tile(table, unit.queries, at.index + 1, {queries, results});

  const Span<float> inverses{at.scratch.inverses.data, denominators.size};
  const bool invertible = invert<float>(denominators, inverses);
  const bool in_one_step =
      !masks_own_block<L> && invertible && is_in_place<float>(results);
  if (in_one_step)
    return multiply_into_rows(in_place(table, tile, results), rotated, summary, inverses, &next);
  const Panel<float> sums = whole_panel(scratch.rows.data, tile.tokens, e.value_dim);
  multiply(sums, rotated, summary, Into::overwrite, &next);
  if constexpr (masks_own_block<L>) {
    const PairPanel keys = pair_panel(scratch.key_columns.data, e.feature_dim, tile.tokens);
    const PairedRows scores = paired_rows(scratch.scores.data, tile.tokens, tile.tokens);
    multiply_into_rows(Rows<BFloat16>{reinterpret_cast<BFloat16*>(scores.data), 2 * scores.stride},
                       rotated, keys, {}, nullptr);
    const PairPanel values = pair_panel(scratch.values.data, tile.tokens, e.value_dim);
    const Triangle past{1};
    if (all_finite(values)) {
      clear_rest(scores, past);
      for_each_strip(scores, values, past,
                     [&](Index row, const LeftFactor& strip, const PairPanel& seen) {
                       multiply(sums.row_range(row, strip.rows), strip, seen, Into::add);
                     });
    } else {
      multiply_triangle(sums, scores, values, tile.tokens, past, Into::add);
    }
  }
  if (invertible && is_in_place<float>(results))
    return store_sums(in_place(table, tile, results), e.value_dim, inverses,
                      sums);
  const Panel<float> out{sums.data, sums.rows, e.value_dim, sums.stride};
  if (!invertible) divide_rows<float>(out, denominators);
  scatter<BFloat16, float>(table, tile, out, invertible ? inverses : Span<float>{}, results,
                           Update::overwrite);
}

/// The keys and values of a causal query tile's own block, m_ii phi(k) and v, in pairs.
template <class L>
OwnTile<float> pack_own_tile(const Operands<L, BFloat16>& operands, const Unit<float>& unit,
                             const TokenTile& tile, float own_weight, Span<float> running_key_sum,
                             const SlotScratch<float>& scratch) {
  const OwnTile<float> own =
      pack_own_keys(operands, unit, tile, own_weight, running_key_sum, scratch);
  transpose(pair_panel(scratch.pairs.key_columns.data, own.rotated.cols, tile.tokens),
            pair_features(own.rotated, scratch.pairs.key_rows));
  pack_values(operands, operands.plan.tables.queries, tile, key_rows(unit, operands.v), scratch);
  return own;
}

/// P of the block's next tile: the summary and what this tile adds to it. The first of a block
/// takes up the mixed summary.
inline PairPanel absorb_own_tile(const Extents& e, const OwnTile<float>& own,
                                 const PairPanel& summary, bool first,
                                 const PairScratch& scratch) {
  const Panel<float> sums = whole_panel(scratch.sums.data, 2 * pairs_of(e.feature_dim), e.value_dim);
  const Index half = sums.rows / 2;
  if (first) unpair(sums.row_range(0, half), sums.row_range(half, half), summary);
  multiply(sums.row_range(0, e.feature_dim),
           LeftFactor::transposed(pair_tokens(own.rotated, scratch.keys)),
           pair_panel(scratch.values.data, own.rotated.rows, e.value_dim), Into::add);
  const PairPanel running = pair_panel(scratch.running.data, e.feature_dim, e.value_dim);
  pair_sums(running, sums.row_range(0, half), sums.row_range(half, half));
  return running;
}

/// y of every query block of the unit's query heads.
template <class L>
void read_out_unit(const Operands<L, BFloat16>& operands, const Unit<float>& unit,
                   const TensorView<BFloat16, 4>& y, const ExecutorRef& loop) {
  if constexpr (mixes_products<L>) mixed_products_of_unit(operands, unit, loop);
  const Plan<L, float>& plan = operands.plan;
  const Extents& e = plan.extents;
  const BlockTable& table = plan.tables.queries;
  const RowGroups groups = shared_row_groups<L>(e, unit.queries.blocks, unit.keys.blocks,
                                                Into::overwrite, loop.slots());
  loop.parallel_for(groups.count, [&](Index group, Index slot) {
    const SlotScratch<float>& scratch = plan.slots[slot];
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      const SummaryRows<float> mixed =
          cpu::mix_group(plan, unit, matrix, groups, group, scratch, false);  // key sums alone
      mix_group(plan, unit, matrix, groups, group, scratch.pairs);
      for (Index i = groups.begin(group); i < groups.begin(group + 1); ++i) {
        const BlockSpan& block = table.blocks[unit.queries.first_block + i];
        const Index end = block.first_tile + block.tiles;
        PairPanel summary = mixed_summary(e, scratch.pairs, i - groups.begin(group));
        for (Index t = block.first_tile; t < end; ++t) {
          QueryTile<float> at{matrix, i, t, mixed, scratch};
          if constexpr (masks_own_block<L>)
            at.own = pack_own_tile(operands, unit, table.tiles[t],
                                   unit_mixing(plan, unit, matrix).row(i)[i], mixed.key_sum(i),
                                   scratch);
          for (Index g = plan.heads_of(matrix).first; g < plan.heads_of(matrix).last; ++g)
            read_out_tile(operands, unit, at, g, summary, y);
          if constexpr (masks_own_block<L>)
            if (t + 1 < end)
              summary = absorb_own_tile(e, at.own, summary, t == block.first_tile, scratch.pairs);
        }
      }
    }
  });
}

}  // namespace pairs
}  // namespace cpu

MHLA_NAMESPACE_END
