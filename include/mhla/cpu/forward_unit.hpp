// SPDX-License-Identifier: MIT
// The forward pass of one unit: a kv head of a sequence, with the query heads that read it.
//
//   key blocks:             pack phi(k), v -> summary S_b, key sum z_b
//   groups of query blocks: mix S~_i, z~_i -> per tile: pack phi(q) -> read out y
//                           (a structured mixing: all S~, z~ before)
//
// Under Causal a tile also reads its own block's keys, which are then added to S~_i and z~_i.
//
// `by` is a unit and how its products are made: exact::Forward (exact.hpp), or with
// Precision::fast pairs::Forward (pairs/forward.hpp). `loop` is OneSlot, or the caller's executor
// if the slots share a unit; the bits are the same.
#pragma once

#include <mhla/cpu/block_mixing.hpp>
#include <mhla/cpu/factored_mixing.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// R and den of every query head of the unit (MixedProduct).
template <class L, class T, class A = Accumulator<T>>
void mixed_products_of_unit(const Unit<L, T>& unit, const ExecutorRef& loop) {
  const Extents& e = unit.extents();
  loop.parallel_for(e.group_size * unit.queries.blocks, [&](Index task, Index slot) {
    const Index g = task / unit.queries.blocks;
    const Index b = task % unit.queries.blocks;
    for (const TokenTile& tile : unit.queries.tiles_of(b)) {
      const FeaturePanels<A> q = pack_query_tile(unit, g, tile, unit.plan.scratch[slot]);
      row_products<A>(tile_offsets(e, unit.memory.products, g, b, tile), q.features,
                      Span<const A>(unit.summaries.key_sum(b)));
    }
  });
  loop.parallel_for(e.group_size, [&](Index g, Index) {
    const Panel<A> denominators = head_offsets(e, unit.memory.denominators, g);
    multiply<A>(denominators, unit.mixing(g), head_offsets(e, unit.memory.products, g));
    for (Index b = 0; b < denominators.rows; ++b)
      for (Index p = 0; p < denominators.cols; ++p)
        denominators.row(b)[p] += static_cast<A>(unit.operands.variant.normalizer.epsilon);
  });
}

/// S~_i and z~_i of a group of query blocks, in the scratch of a slot.
template <class L, class T, class A>
MHLA_ONCE_A_CALL SummaryRows<A> mix_group(const Unit<L, T>& unit, Index matrix,
                                          const RowGroups& groups, Index group,
                                          const SlotScratch<A>& scratch, bool summaries_wanted) {
  const SummaryRows<A> mixed(scratch.mixed_summaries.data, scratch.mixed_key_sums.data,
                             unit.extents(), unit.orientation(), groups.begin(group),
                             groups.size(group), mixes_key_sums<L>);
  const Panel<const A> rows = unit.mixing(matrix).row_range(mixed.first, groups.size(group));
  const auto mix_rows = [&](const Panel<A>& from, const Panel<A>& to) {
    if constexpr (is_causal<L>) {
      mix_past<A>(rows, unit.plan.problem.queries.first + mixed.first, lag_of(sight_of<L>), from,
                  to);
    } else {
      mix<A>(rows, from, to);
    }
  };
  if (summaries_wanted) mix_rows(unit.summaries.summaries, mixed.summaries);
  if constexpr (mixes_key_sums<L>) mix_rows(unit.summaries.key_sums, mixed.key_sums);
  return mixed;
}

/// Calls run(at, g) for every tile of a query block and every query head g of one matrix.
template <class By, class Run, class L = typename By::Variant>
void for_each_tile_of_block(const By& by, bool own_wanted, typename By::Tile at, const Run& run) {
  const Index end = at.index + at.parts();
  const auto heads = by.unit.plan.heads_of(at.matrix);
  for (Index tile = at.index; tile < end; ++tile) {
    at.index = tile;
    if constexpr (is_causal_within_block<L>) {
      at.own = pack_own_keys(by.unit, at);
      by.pack_own_tile(at);
    }
    for (Index g = heads.first; g < heads.last; ++g) run(at, g);
    if constexpr (is_causal_within_block<L>)
      if (own_wanted && tile + 1 < end) by.absorb_own_tile(at);
  }
}

/// Calls run(at, g) for every tile of the unit's query blocks and every query head g. S~ is mixed
/// only if it is needed. A structured mixing takes one matrix after the other, `after(matrix)` it.
template <class By, class Run, class After, class Mixtures = typename By::Mixtures>
MHLA_ONCE_A_CALL void for_each_query_tile(const By& by, bool summaries_wanted,
                                          const ExecutorRef& loop, const Run& run,
                                          const After& after) {
  const auto& unit = by.unit;
  const auto& plan = by.unit.plan;
  const auto run_group = [&](const RowGroups& groups, Index group, Index matrix,
                             const Mixtures& mixed, const auto& scratch) MHLA_ONCE_A_CALL {
    for (Index i = groups.begin(group); i < groups.begin(group + 1); ++i) {
      const BlockSpan& block = unit.queries[i];
      if constexpr (requires { by.request; })
        if (block.tiles == 0) by.clear_block(matrix, i, scratch);
      for_each_tile_of_block(by, summaries_wanted,
                             {matrix, i, unit.queries, block.first_tile, mixed, scratch,
                              by.summary(mixed, i, scratch)},
                             run);
      if constexpr (requires { by.end_block(matrix, i); }) by.end_block(matrix, i);
    }
  };
  if constexpr (is_structured<typename By::Variant>) {
    const RowGroups blocks(unit.queries.blocks, 1);
    for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) {
      const Mixtures mixed{mix_unit(unit, matrix, loop, summaries_wanted)};
      loop.parallel_for(blocks.count, [&](Index block, Index slot) {
        run_group(blocks, block, matrix, mixed, plan.scratch[slot]);
      });
      after(matrix);
    }
  } else {
    const RowGroups groups = by.groups(unit.queries.blocks, unit.keys.blocks, false, loop);
    loop.parallel_for(groups.count, [&](Index group, Index slot) {
      for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix)
        run_group(groups, group, matrix,
                  by.mix(matrix, groups, group, plan.scratch[slot], summaries_wanted),
                  plan.scratch[slot]);
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

}  // namespace cpu

MHLA_NAMESPACE_END
