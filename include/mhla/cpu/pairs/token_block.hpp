// SPDX-License-Identifier: MIT
// Token tiles as factors: rows of tensors, or of their features, rounded to bfloat16 in pairs.
#pragma once

#include <mhla/cpu/token_block.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::pairs {

/// Rows of v of a tile of `of`, the unit's keys or, under Causal, its queries: in place or,
/// strided, gathered into the slot's panel of values: visit(rows).
template <class L, class Visitor>
void with_values(const Unit<L, BFloat16>& unit, const UnitBlocks& of, const TokenTile& tile,
                 const SlotScratch<float>& scratch, const Visitor& visit) {
  const TokenRows<const BFloat16> values = unit.key_rows(unit.operands.v);
  if (is_in_place<float>(values)) return visit(in_place(of.table, tile, values));
  visit(readable_rows<BFloat16, float>(of.table, tile, values, scratch.values));
}

/// v of a tile, in pairs of tokens.
template <class L>
VnniPanel pack_values(const Unit<L, BFloat16>& unit, const UnitBlocks& of, const TokenTile& tile,
                      const SlotScratch<float>& scratch, Span<Pair> memory) {
  const VnniPanel panel = pair_panel(memory.data, tile.tokens, unit.extents().value_dim);
  with_values(unit, of, tile, scratch,
              [&](const auto& rows) { pair_rows(panel, tile.tokens, rows); });
  return panel;
}
/// Rows of v, in pairs of values.
template <class L>
PairedRows pack_value_rows(const Unit<L, BFloat16>& unit, const UnitBlocks& of,
                           const TokenTile& tile, const SlotScratch<float>& scratch,
                           Span<Pair> memory) {
  const PairedRows panel = paired_rows(memory.data, tile.tokens, unit.extents().value_dim);
  with_values(unit, of, tile, scratch, [&](const auto& rows) { pair_columns(panel, rows); });
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

/// Whether an element-wise phi(x) is packed in one step, without a panel of floats.
template <class L>
bool maps_into_pairs(const Unit<L, BFloat16>& unit, const TokenRows<const BFloat16>& rows) {
  constexpr Index vector = 16;
  return !unit.plan.rotation.rotates() && is_in_place<float>(rows) && rows.dim >= 2 * vector &&
         rows.dim % 2 == 0;
}

/// phi(k) of a tile, rotated, in pairs of tokens; adds phi(k) to the block's key sum.
template <class L>
VnniPanel pack_keys(const Unit<L, BFloat16>& unit, const TokenTile& tile,
                    const CompensatedSum<float>& key_sum, Into into,
                    const SlotScratch<float>& scratch) {
  const TokenRows<const BFloat16> keys = unit.key_rows(unit.operands.k);
  if constexpr (ElementwiseFeatureMap<typename L::FeatureMapType>)
    if (maps_into_pairs(unit, keys)) {
      const VnniPanel panel = pair_panel(scratch.pairs.features.data, tile.tokens, keys.dim);
      if (into == Into::overwrite) key_sum.set_zero();
      map_pair_rows(unit.operands.variant.feature_map, panel, tile.tokens,
                    in_place(unit.keys.table, tile, keys), key_sum.sum);
      return panel;
    }
  const FeaturePanels<float> k = pack_features(key_features(unit, tile), scratch);
  if (normalizes<L>) add_rows(key_sum, 1.0f, k.features, into);
  return pair_tokens(k.rotated, scratch.pairs.features);
}

/// phi(q) of a tile, rotated, in pairs of features, and its denominators.
template <class L>
std::pair<PairedRows, Span<const float>> pack_queries(const Unit<L, BFloat16>& unit,
                                                      const QueryTile<float, VnniPanel>& at,
                                                      Index g) {
  const TokenTile& tile = at.tile();
  const TokenRows<const BFloat16> queries = unit.query_rows(g, unit.operands.q);
  if constexpr (ElementwiseFeatureMap<typename L::FeatureMapType> && !is_causal_within_block<L> &&
                !mixes_products<L>)
    if (maps_into_pairs(unit, queries)) {
      const PairedRows rows =
          paired_rows(at.scratch.pairs.feature_rows.data, tile.tokens, queries.dim);
      const Span<float> denominators{at.scratch.denominators.data,
                                     normalizes<L> ? tile.tokens : Index{0}};
      map_pair_columns(unit.operands.variant.feature_map, unit.operands.scale(), rows,
                       in_place(unit.queries.table, tile, queries),
                       Span<const float>(at.mixed.key_sum(at.block)), denominators);
      if constexpr (normalizes<L>)
        for (Index t = 0; t < tile.tokens; ++t)
          denominators[t] += static_cast<float>(unit.operands.variant.normalizer.epsilon);
      return {rows, denominators};
    }
  const FeaturePanels<float> q = pack_features(query_features(unit, g, tile), at.scratch);
  return {pair_features(q.rotated, at.scratch.pairs.feature_rows),
          tile_denominators(unit, at, g, q.features)};
}

}  // namespace cpu::pairs

MHLA_NAMESPACE_END
