// SPDX-License-Identifier: MIT
// The forward pass of one unit: a kv head of a sequence, with the query heads that read it.
//
//   key blocks:             pack phi(k), v -> summary S_b, key sum z_b
//   groups of query blocks: mix S~_i, z~_i -> per tile: pack phi(q) -> read out y
//                           (a structured mixing: all S~, z~ before)
//
// Under Causal a tile also reads its own block's keys, which are then added to S~_i and z~_i.
//
// `by` is a unit and how its products are made: exact::Forward, in the accumulator type, or with
// Precision::fast pairs::Forward (pairs/forward.hpp). `loop` is OneSlot, or the caller's executor
// if the slots share a unit; the bits are the same.
#pragma once

#include <mhla/cpu/block_mixing.hpp>
#include <mhla/cpu/factored_mixing.hpp>
#include <mhla/cpu/mixed_product.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// S~_i, unless it is in pairs, and z~_i of a group of query blocks, in the scratch of a slot.
template <class L, class T, class A>
MHLA_ONCE_A_CALL SummaryRows<A> mix_group(const Unit<L, T>& unit, Index matrix,
                                          const RowGroups& groups, Index group,
                                          const SlotScratch<A>& scratch, bool summaries_wanted) {
  const SummaryRows<A> mixed(scratch.mixed_summaries.data, scratch.mixed_key_sums.data,
                             unit.extents(), unit.orientation(), groups.begin(group),
                             groups.size(group), mixes_key_sums<L>);
  const Panel<const A> rows = unit.mixing(matrix).row_range(mixed.first, groups.size(group));
  const auto mix_rows = [&](const Panel<A>& from, const Panel<A>& to) {
    mix<sight_of<L>, A>(rows, unit.plan.problem.queries.first + mixed.first, from, to);
  };
  if (summaries_wanted && !unit.in_pairs) mix_rows(unit.summaries.summaries, mixed.summaries);
  if constexpr (mixes_key_sums<L>) mix_rows(unit.summaries.key_sums, mixed.key_sums);
  return mixed;
}

/// Calls run(at, g) for every tile of query block i and every query head g of one matrix.
template <class By, class Run, class L = typename By::Variant, class A = typename By::A>
MHLA_ONCE_A_CALL void for_each_tile_of_block(const By& by, Index matrix, Index i, bool own_wanted,
                                             const typename By::Mixtures& mixed,
                                             const SlotScratch<A>& scratch, const Run& run) {
  const auto& unit = by.unit;
  const auto heads = unit.plan.heads_of(matrix);
  const BlockSpan& block = unit.queries[i];
  const Index end = block.first_tile + block.tiles;
  typename By::Tile at{
      matrix, i, unit.queries, block.first_tile, mixed, scratch, by.summary(mixed, i, scratch)};
  for (; end > at.index; ++at.index) {  // nvcc takes `index <` for a template
    if constexpr (is_causal_within_block<L>) {
      at.own = pack_own_keys(unit, at);
      by.pack_own_tile(at);
    }
    for (Index g = heads.first; g < heads.last; ++g) run(at, g);
    if constexpr (is_causal_within_block<L>)
      if (own_wanted && at.index + 1 < end) by.absorb_own_tile(at);
  }
  if constexpr (requires { by.request; }) by.end_block(matrix, i, scratch);
}

/// Calls run(at, g) for every tile of the unit's query blocks and every query head g. S~ is mixed
/// only if it is needed. A structured mixing takes one matrix after the other, `after(matrix)` it.
template <class By, class Run, class After, class L = typename By::Variant>
MHLA_ONCE_A_CALL void for_each_query_tile(const By& by, bool summaries_wanted,
                                          const ExecutorRef& loop, const Run& run,
                                          const After& after) {
  const auto& unit = by.unit;
  const auto& plan = by.unit.plan;
  if constexpr (is_structured<L>) {
    for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) {
      const typename By::Mixtures mixed{mix_unit(unit, matrix, loop, summaries_wanted)};
      loop.parallel_for(unit.queries.blocks, [&](Index i, Index slot) {
        for_each_tile_of_block(by, matrix, i, summaries_wanted, mixed, plan.scratch[slot], run);
      });
      after(matrix);
    }
  } else {
    const RowGroups groups =
        shared_row_groups<L>(plan.extents, unit.queries.blocks, unit.keys.blocks, Into::overwrite,
                             loop.num_slots(), unit.in_pairs);
    loop.parallel_for(groups.count, [&](Index group, Index slot) {
      const auto& scratch = plan.scratch[slot];
      for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) {
        typename By::Mixtures mixed{
            mix_group(unit, matrix, groups, group, scratch, summaries_wanted)};
        if constexpr (requires { mixed.paired; })
          if (summaries_wanted && unit.in_pairs)
            mixed.paired = by.mix(mixed, matrix, scratch.pairs);
        for (Index i = groups.begin(group); i < groups.begin(group + 1); ++i)
          for_each_tile_of_block(by, matrix, i, summaries_wanted, mixed, scratch, run);
      }
    });
  }
}

/// y of every query block of the unit's query heads.
template <class By>
MHLA_ONCE_A_CALL void read_out_unit(const By& by, const TensorView<typename By::Scalar, 4>& y,
                                    const ExecutorRef& loop) {
  if constexpr (mixes_products<typename By::Variant>) mixed_products_of_unit(by.unit, loop);
  for_each_query_tile(
      by, true, loop, [&](const typename By::Tile& at, Index g) { by.read_out(at, g, y); },
      [](Index) {});
}

/// S_b and z_b of every key block.
template <class L, class T, class A = Accumulator<T>>
void summarize_unit(const Unit<L, T>& unit, const ExecutorRef& loop) {
  const BlockTable& table = unit.keys.table;
  const TokenRows<const T> keys = unit.key_rows(unit.operands.k);
  const TokenRows<const T> values = unit.key_rows(unit.operands.v);
  loop.parallel_for(unit.keys.blocks, [&](Index b, Index slot) {
    const SlotScratch<A>& scratch = unit.plan.scratch[slot];
    const BlockSpan& block = unit.keys[b];
    if (block.tiles == 0) set_zero(unit.summaries.summary(b), unit.summaries.key_sum(b));
    for (Index i = 0; i < block.tiles; ++i) {
      const TokenTile& tile = table.tiles[block.first_tile + i];
      const FeaturePanels<A> k = pack_features(key_features(unit, tile), scratch);
      Prefetch next = prefetch_tile(unit.keys, block.first_tile + i + 1, {keys, values});
      prefetch_summary(unit.summaries, b + 1, i, block.tiles, next);
      summarize<A>(k.features, k.rotated, readable_rows<T, A>(table, tile, values, scratch.values),
                   unit.orientation(), unit.summaries.summary(b),
                   {unit.summaries.key_sum(b), scratch.key_sum_rest},
                   i == 0 ? Into::overwrite : Into::add, &next);
    }
  });
}

namespace exact {

template <class L, class T>
struct Forward {
  using Variant = L;
  using Scalar = T;
  using A = Accumulator<T>;
  using Tile = QueryTile<A>;
  /// S~ and z~ of a group of query blocks, or dS and dz of one of key blocks.
  using Mixtures = SummaryRows<A>;

  const Unit<L, T>& unit;

  /// S~ of a block.
  static Panel<A> summary(const Mixtures& mixed, Index block, const SlotScratch<A>&) {
    return mixed.summary(block);
  }

  /// Packs a query tile's own values.
  void pack_own_tile(Tile& at) const {
    at.own.values = readable_panel<T>(unit.queries.table, at.tile(), unit.key_rows(unit.operands.v),
                                      at.scratch.own.values);
  }
  /// Adds the tile to P, which later tiles of its block read.
  void absorb_own_tile(const Tile& at) const {
    summarize<A>(at.own.features, at.own.rotated, at.own.values.placed(), unit.orientation(),
                 at.summary, {}, Into::add, nullptr);
  }

  /// y of a tile of query head g.
  void read_out(const Tile& at, Index g, const TensorView<T, 4>& y) const {
    const BlockTable& table = unit.queries.table;
    const TokenTile& tile = at.tile();
    const TokenRows<const T> queries = unit.query_rows(g, unit.operands.q);
    const TokenRows<T> results = unit.query_rows(g, y);
    const FeaturePanels<A> q = pack_features(query_features(unit, g, tile), at.scratch);
    const Span<const A> denominators = tile_denominators(unit, at, g, q.features);
    Prefetch next = prefetch_tile(unit.queries, at.index + 1, {queries, results});
    if constexpr (is_causal_within_block<L>)
      next = prefetch_tile(
          unit.queries, at.index + 1,
          {queries, results, unit.key_rows(unit.operands.k), unit.key_rows(unit.operands.v)});
    prefetch_summary(at.mixed, at.block + 1, at.part(), at.parts(), next);

    const Span<A> inverses{at.scratch.inverses.data, denominators.size};
    const bool invertible = invert<A>(denominators, inverses);
    // The own block's contribution is added before the rows are scaled.
    if (!is_causal_within_block<L> && invertible && is_in_place_of_products<A>(results))
      return multiply_into_rows<A>(in_place_of_products<A>(table, tile, results), q.rotated,
                                   at.summary, inverses, &next);
    Panel<A> out = denominators.size == 0 ? panel_in_place<A>(table, tile, results) : Panel<A>{};
    const bool in_place = out.rows > 0;
    if (!in_place) out = panel(at.scratch.values.data, tile.tokens, unit.extents().value_dim);
    multiply_into_rows<A>(out.placed(), q.rotated, at.summary, {}, &next);
    if constexpr (is_causal_within_block<L>)
      read_out_own_tile<A>(q.rotated, at.own.rotated, at.own.values, at.own.scores, out);
    if (in_place) return;
    if (!invertible) divide_rows<A>(out, denominators);
    scatter<T, A>(table, tile, out, invertible ? inverses : Span<A>{}, results, Update::overwrite);
  }
};

}  // namespace exact
}  // namespace cpu

MHLA_NAMESPACE_END
