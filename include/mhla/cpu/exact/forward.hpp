// SPDX-License-Identifier: MIT
// The products of a forward pass (forward_unit.hpp) in the accumulator type.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/forward_unit.hpp>
#include <mhla/cpu/partition.hpp>
#include <mhla/cpu/plan.hpp>
#include <mhla/cpu/readout.hpp>
#include <mhla/cpu/tiles.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// S_b and z_b of every key block.
template <class L, class T, class A>
void summarize_unit(const Operands<L, T>& operands, const Unit<A>& unit, const ExecutorRef& loop) {
  const Plan<L, A>& plan = operands.plan;
  const BlockTable& table = plan.tables.keys;
  const TokenRows<const T> keys = key_rows(unit, operands.k);
  const TokenRows<const T> values = key_rows(unit, operands.v);
  loop.parallel_for(unit.keys.blocks, [&](Index b, Index slot) {
    const SlotScratch<A>& scratch = plan.scratch[slot];
    const BlockSpan& block = table.blocks[unit.keys.first_block + b];
    if (block.tiles == 0) set_zero(unit.summaries.summary(b), unit.summaries.key_sum(b));
    for (Index i = 0; i < block.tiles; ++i) {
      const TokenTile& tile = table.tiles[block.first_tile + i];
      const FeaturePanels<A> k = pack_tile(operands, A(1), table, tile, keys, scratch);
      Prefetch next = prefetch_tile(table, unit.keys, block.first_tile + i + 1, {keys, values});
      prefetch_summary(unit.summaries, b + 1, i, block.tiles, next);
      summarize<A>(k.features, k.rotated, readable_rows<T, A>(table, tile, values, scratch.values),
                   unit.orientation, unit.summaries.summary(b),
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
  struct Mixtures {
    SummaryRows<A> rows;
  };

  const Operands<L, T>& operands;
  const Unit<A>& unit;

  /// Groups of `rows` blocks that mix `terms` others, `adds` one matrix after another.
  RowGroups groups(Index rows, Index terms, bool adds, const ExecutorRef& loop) const {
    return shared_row_groups<L>(operands.plan.extents, rows, terms,
                                adds ? Into::add : Into::overwrite, loop.num_slots());
  }
  Mixtures mix(Index matrix, const RowGroups& groups, Index group, const SlotScratch<A>& scratch,
               bool summaries_wanted) const {
    return {mix_group(operands.plan, unit, matrix, groups, group, scratch, summaries_wanted)};
  }
  /// S~ of a block.
  static Panel<A> summary(const Mixtures& mixed, Index block, const SlotScratch<A>&) {
    return mixed.rows.summary(block);
  }
  static void begin_block(Index, Index, bool, const SlotScratch<A>&) {}
  static void end_block(Index, Index) {}

  /// Packs a query tile's own keys and values, and advances z~_i to p of the tile's last token.
  void pack_own_tile(Tile& at) const {
    const BlockTable& table = operands.plan.tables.queries;
    const TokenTile& tile = table.tiles[at.index];
    at.own =
        pack_own_keys(operands, unit, tile, own_weight(operands.plan, unit, at.matrix, at.block),
                      at.mixed.key_sum(at.block), at.scratch);
    at.own.values =
        readable_panel<T>(table, tile, key_rows(unit, operands.v), at.scratch.own.values);
  }
  /// Adds the tile to P, which later tiles of its block read.
  void absorb_own_tile(const Tile& at) const {
    summarize<A>(at.own.features, at.own.rotated, at.own.values.placed(), unit.orientation,
                 at.summary, {}, Into::add, nullptr);
  }

  /// y of a tile of query head g.
  void read_out(const Tile& at, Index g, const TensorView<T, 4>& y) const {
    const Plan<L, A>& plan = operands.plan;
    const BlockTable& table = plan.tables.queries;
    const TokenTile& tile = table.tiles[at.index];
    const TokenRows<const T> queries = query_rows(plan, unit, g, operands.q);
    const TokenRows<T> results = query_rows(plan, unit, g, y);
    const FeaturePanels<A> q = pack_query_tile(operands, unit, g, tile, at.scratch);
    const Span<const A> denominators = tile_denominators(operands, unit, at, g, q.features);
    Prefetch next = prefetch_tile(table, unit.queries, at.index + 1, {queries, results});
    if constexpr (is_causal_within_block<L>)
      next =
          prefetch_tile(table, unit.queries, at.index + 1,
                        {queries, results, key_rows(unit, operands.k), key_rows(unit, operands.v)});
    const BlockSpan& block = table.blocks[unit.queries.first_block + at.block];
    prefetch_summary(at.mixed, at.block + 1, at.index - block.first_tile, block.tiles, next);

    const Span<A> inverses{at.scratch.inverses.data, denominators.size};
    const bool invertible = invert<A>(denominators, inverses);
    if (!is_causal_within_block<L> && invertible && is_in_place_of_products<A>(results))
      return multiply_into_rows<A>(in_place_of_products<A>(table, tile, results), q.rotated,
                                   at.summary, inverses, &next);
    const Panel<A> there =
        denominators.size == 0 ? panel_in_place<A>(table, tile, results) : Panel<A>{};
    const Panel<A> out =
        there.rows > 0 ? there : panel(at.scratch.values.data, tile.tokens, plan.extents.value_dim);
    // The own block's contribution is added before the rows are scaled.
    const bool scaled = !is_causal_within_block<L> && invertible;
    multiply_into_rows<A>(out.placed(), q.rotated, at.summary, scaled ? inverses : Span<A>{},
                          &next);
    if constexpr (is_causal_within_block<L>)
      read_out_own_tile<A>(q.rotated, at.own.rotated, at.own.values, at.own.scores, out);
    if (there.rows > 0) return;
    if (!invertible) divide_rows<A>(out, denominators);
    scatter<T, A>(table, tile, out, invertible && !scaled ? inverses : Span<A>{}, results,
                  Update::overwrite);
  }
};

}  // namespace exact
}  // namespace cpu

MHLA_NAMESPACE_END
