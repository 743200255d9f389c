// SPDX-License-Identifier: MIT
// Token tiles as factors: rows of tensors, or of their features, rounded to bfloat16 in pairs.
#pragma once

#include <mhla/cpu/tiles.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {
namespace pairs {

/// The rows of a tile in place or, strided, gathered into `buffer`: visit(rows).
template <class Visitor>
void with_rows(const BlockTable& table, const TokenTile& tile,
               const TokenRows<const BFloat16>& tokens, Span<float> buffer, const Visitor& visit) {
  if (is_in_place<float>(tokens)) return visit(in_place(table, tile, tokens));
  visit(readable_rows<BFloat16, float>(table, tile, tokens, buffer));
}

/// v of a tile, in pairs of tokens.
inline VnniPanel pack_values(const BlockTable& table, const TokenTile& tile,
                             const TokenRows<const BFloat16>& values, Span<float> buffer,
                             Span<Pair> memory) {
  const VnniPanel panel = pair_panel(memory.data, tile.tokens, values.dim);
  with_rows(table, tile, values, buffer,
            [&](const auto& rows) { pair_rows(panel, tile.tokens, rows); });
  return panel;
}
/// Rows of v, in pairs of values.
inline PairedRows pack_value_rows(const BlockTable& table, const TokenTile& tile,
                                  const TokenRows<const BFloat16>& values, Span<float> buffer,
                                  Span<Pair> memory) {
  const PairedRows panel = paired_rows(memory.data, tile.tokens, values.dim);
  with_rows(table, tile, values, buffer, [&](const auto& rows) { pair_columns(panel, rows); });
  return panel;
}

/// A panel of floats, in pairs of tokens.
inline VnniPanel pair_tokens(const Panel<const float>& from, Span<Pair> memory) {
  const VnniPanel panel = pair_panel(memory.data, from.rows, from.cols);
  pair_rows<float>(panel, from.rows, from.placed());
  return panel;
}
/// Rows of features, in pairs of features.
inline PairedRows pair_features(const Panel<const float>& from, Span<Pair> memory) {
  const PairedRows rows = paired_rows(memory.data, from.rows, from.cols);
  pair_columns<float>(rows, from.placed());
  return rows;
}
/// The transpose of rows in pairs of features: the same pairs, as rows.
inline VnniPanel transposed(const PairedRows& from, Span<Pair> memory) {
  const VnniPanel panel = pair_panel(memory.data, from.cols, from.rows);
  pair_functions<float>().transpose(panel, from);
  return panel;
}

/// Whether phi(x) is packed in one step, without a panel of floats.
template <class L>
bool maps_into_pairs(const Operands<L, BFloat16>& operands, const TokenRows<const BFloat16>& rows) {
  constexpr Index vector = 16;
  return ElementwiseFeatureMap<typename L::FeatureMapType> && !operands.plan.rotation.rotates() &&
         is_in_place<float>(rows) && rows.dim >= 2 * vector && rows.dim % 2 == 0;
}

/// phi(k) of a tile, rotated, in pairs of tokens; adds phi(k) to the block's key sum.
template <class L>
VnniPanel pack_keys(const Operands<L, BFloat16>& operands, const TokenTile& tile,
                    const TokenRows<const BFloat16>& keys, const CompensatedSum<float>& key_sum,
                    Into into, const SlotScratch<float>& scratch) {
  const BlockTable& table = operands.plan.tables.keys;
  if constexpr (ElementwiseFeatureMap<typename L::FeatureMapType>)
    if (maps_into_pairs(operands, keys)) {
      const VnniPanel panel = pair_panel(scratch.pairs.features.data, tile.tokens, keys.dim);
      if (into == Into::overwrite) key_sum.set_zero();
      map_pair_rows(operands.variant.feature_map, panel, tile.tokens, in_place(table, tile, keys),
                    key_sum.sum);
      return panel;
    }
  const FeaturePanels<float> k = pack_tile(operands, 1.0f, table, tile, keys, scratch);
  if (normalizes<L>) add_rows(key_sum, 1.0f, k.features, into);
  return pair_tokens(k.rotated, scratch.pairs.features);
}

/// phi(k) of a tile, rotated, in pairs of features.
template <class L>
PairedRows pack_key_rows(const Operands<L, BFloat16>& operands, const TokenTile& tile,
                         const TokenRows<const BFloat16>& keys, const SlotScratch<float>& scratch) {
  const BlockTable& table = operands.plan.tables.keys;
  if constexpr (ElementwiseFeatureMap<typename L::FeatureMapType>)
    if (maps_into_pairs(operands, keys)) {
      const PairedRows rows = paired_rows(scratch.pairs.feature_rows.data, tile.tokens, keys.dim);
      map_pair_columns(operands.variant.feature_map, 1.0f, rows, in_place(table, tile, keys),
                       Span<const float>{}, Span<float>{});
      return rows;
    }
  const FeaturePanels<float> k = pack_tile(operands, 1.0f, table, tile, keys, scratch);
  return pair_features(k.rotated, scratch.pairs.feature_rows);
}

/// phi(q) of a tile, rotated, in pairs of features, and its denominators.
struct PackedQueries {
  PairedRows rotated;
  Span<const float> denominators;
};
template <class L>
PackedQueries pack_queries(const Operands<L, BFloat16>& operands, const Unit<float>& unit,
                           const QueryTile<float, VnniPanel>& at, Index g) {
  const Plan<L, float>& plan = operands.plan;
  const TokenTile& tile = plan.tables.queries.tiles[at.index];
  const TokenRows<const BFloat16> queries = query_rows(plan, unit, g, operands.q);
  if constexpr (ElementwiseFeatureMap<typename L::FeatureMapType> && !is_causal_within_block<L> &&
                !mixes_products<L>)
    if (maps_into_pairs(operands, queries)) {
      const PairedRows rows =
          paired_rows(at.scratch.pairs.feature_rows.data, tile.tokens, queries.dim);
      const Span<float> denominators{at.scratch.denominators.data,
                                     normalizes<L> ? tile.tokens : Index{0}};
      map_pair_columns(operands.variant.feature_map, operands.scale(), rows,
                       in_place(plan.tables.queries, tile, queries),
                       Span<const float>(at.mixed.key_sum(at.block)), denominators);
      if constexpr (normalizes<L>)
        for (Index t = 0; t < tile.tokens; ++t)
          denominators[t] += static_cast<float>(operands.variant.normalizer.epsilon);
      return {rows, denominators};
    }
  const FeaturePanels<float> q = pack_query_tile(operands, unit, g, tile, at.scratch);
  return {pair_features(q.rotated, at.scratch.pairs.feature_rows),
          tile_denominators(operands, unit, at, g, q.features)};
}

}  // namespace pairs
}  // namespace cpu

MHLA_NAMESPACE_END
