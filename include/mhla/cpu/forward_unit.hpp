// SPDX-License-Identifier: MIT
// The forward pass of one unit: a kv head of a sequence, with the query heads that read it.
//
//   key blocks:             pack phi(k), v -> summary S_b, key sum z_b
//   groups of query blocks: mix S~_i, z~_i -> per tile: pack phi(q) -> read out y
//                           (a structured mixing: all S~, z~ before)
//
// Under Causal a tile also reads its own block's keys, which are then added to S~_i and z~_i.
//
// `loop` is OneSlot, or the caller's executor if the slots share a unit; the bits are the same.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <mhla/core/config.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/block_mixing.hpp>
#include <mhla/cpu/block_summary.hpp>
#include <mhla/cpu/factored_unit.hpp>
#include <mhla/cpu/intra_block.hpp>
#include <mhla/cpu/mixed_product.hpp>
#include <mhla/cpu/plan.hpp>
#include <mhla/cpu/readout.hpp>
#include <mhla/cpu/token_block.hpp>
#include <mhla/cpu/unit.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// The panels of a tile: phi(x), and the same rotated.
template <class A>
struct FeaturePanels {
  Panel<A> features;
  Panel<A> rotated;
};

template <class L, class T, class A>
FeaturePanels<A> pack_tile(const Operands<L, T>& operands, A scale, const BlockTable& table,
                           const TokenTile& tile, const TokenRows<const T>& rows,
                           const SlotScratch<A>& scratch) {
  const Index features = operands.plan.extents.feature_dim;
  // Features before the rotation are the normalizer's.
  const FeaturePanels<A> panels{
      panel((normalizes<L> ? scratch.features : scratch.rotated).data, tile.tokens, features),
      panel(scratch.rotated.data, tile.tokens, features)};
  pack_features(operands.variant.feature_map, operands.plan.rotation, scale, table, tile, rows,
                panels.features, panels.rotated, scratch.row);
  return panels;
}

/// Packs a tile of query head g.
template <class L, class T, class A>
FeaturePanels<A> pack_query_tile(const Operands<L, T>& operands, const Unit<A>& unit, Index g,
                                 const TokenTile& tile, const SlotScratch<A>& scratch) {
  return pack_tile(operands, operands.scale(), operands.plan.tables.queries, tile,
                   query_rows(operands.plan, unit, g, operands.q), scratch);
}

/// The tokens of one (batch, head) of a tensor as memory, whatever their type.
struct TokenBytes {
  const void* data;
  Index element_bytes;
  Index dim;
  Index token_stride;
  Index stride;

  template <class T>
  TokenBytes(const TokenRows<T>& tokens)  // NOLINT: the same without the type
      : data(tokens.data),
        element_bytes(static_cast<Index>(sizeof(T))),
        dim(tokens.dim),
        token_stride(tokens.token_stride),
        stride(tokens.stride) {}
  bool lies_in_columns() const { return token_stride == 1 && stride != 1; }
};

/// What is prefetched during a tile's work: the rows of another tile, or its columns if the first
/// tensor stores the tokens of a run contiguously; of the other tensors those with the same layout.
/// Nothing if `index` is outside the sequence's tiles.
MHLA_OUT_OF_LINE inline Prefetch prefetch_tile(const BlockTable& table,
                                               const SequenceSpan& sequence, Index index,
                                               std::initializer_list<TokenBytes> tensors) {
  const BlockSpan* const blocks = table.blocks.data + sequence.first_block;
  const BlockSpan& last = blocks[sequence.blocks - 1];
  if (index < blocks->first_tile || index >= last.first_tile + last.tiles) return {};
  const TokenTile& tile = table.tiles[index];
  const Index* const places = table.places_of(tile);
  const TokenBytes& first = *tensors.begin();
  const bool by_columns = first.lies_in_columns() && tile.runs == 1;
  Prefetch prefetch = by_columns ? Prefetch(nullptr, first.dim) : Prefetch(places, tile.tokens);
  for (const TokenBytes& tokens : tensors) {
    const Index bytes = tokens.element_bytes;
    if (tokens.data == nullptr) continue;
    if (by_columns && tokens.lies_in_columns())
      prefetch.add(static_cast<const char*>(tokens.data) + places[0] * bytes, tokens.stride * bytes,
                   tile.tokens * bytes, (std::min)(tokens.dim, first.dim));
    if (!by_columns && tokens.stride == 1)
      prefetch.add(tokens.data, tokens.token_stride * bytes, tokens.dim * bytes);
  }
  return prefetch;
}

/// Part `part` of `parts` of the summary of row `row`, if there are more summaries than the cache
/// holds: the tiles of one block prefetch the next block's summary while they run.
template <class A>
void prefetch_summary(const SummaryRows<A>& rows, Index row, Index part, Index parts,
                      Prefetch& prefetch) {
  const Panel<A>& summaries = rows.summaries;
  if (summaries.rows * summaries.stride <= cached_summaries || row < rows.first ||
      row >= rows.first + summaries.rows)
    return;
  const Index begin = even_split(summaries.cols, parts, part);
  const Index end = even_split(summaries.cols, parts, part + 1);
  prefetch.add_piece(summaries.row(row - rows.first) + begin,
                     (end - begin) * static_cast<Index>(sizeof(A)));
}

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

/// A query head's part of a [group_size, blocks, block tokens] array (MixedProduct).
template <class A>
Panel<A> head_offsets(const Extents& e, Span<A> array, Index g) {
  return panel(array.data + g * e.query_blocks * e.block_tokens, e.query_blocks, e.block_tokens);
}
/// The same for a tile.
template <class A>
Span<A> tile_offsets(const Extents& e, Span<A> array, Index g, Index block, const TokenTile& tile) {
  return {head_offsets(e, array, g).row(block) + tile.offset, tile.tokens};
}

/// R and den of every query head of the unit (MixedProduct).
template <class L, class T, class A>
void mixed_products_of_unit(const Operands<L, T>& operands, const Unit<A>& unit,
                            const ExecutorRef& loop) {
  const Plan<L, A>& plan = operands.plan;
  const Extents& e = plan.extents;
  loop.parallel_for(e.group_size * unit.queries.blocks, [&](Index task, Index slot) {
    const Index g = task / unit.queries.blocks;
    const Index b = task % unit.queries.blocks;
    const BlockSpan& block = plan.tables.queries.blocks[unit.queries.first_block + b];
    for (Index i = 0; i < block.tiles; ++i) {
      const TokenTile& tile = plan.tables.queries.tiles[block.first_tile + i];
      const FeaturePanels<A> q = pack_query_tile(operands, unit, g, tile, plan.scratch[slot]);
      own_key_sum_products<A>(q.features, unit.summaries.key_sum(b),
                              tile_offsets(e, unit.memory.products, g, b, tile));
    }
  });
  loop.parallel_for(e.group_size, [&](Index g, Index) {
    mixed_product_denominators<A>(unit_mixing(plan, unit, g),
                                  head_offsets(e, unit.memory.products, g),
                                  static_cast<A>(operands.variant.normalizer.epsilon),
                                  head_offsets(e, unit.memory.denominators, g));
  });
}

/// S~_i and z~_i of a group of query blocks, in the scratch of a slot.
template <class L, class A>
SummaryRows<A> mix_group(const Plan<L, A>& plan, const Unit<A>& unit, Index matrix,
                         const RowGroups& groups, Index group, const SlotScratch<A>& scratch,
                         bool summaries_wanted) {
  const SummaryRows<A> mixed(scratch.mixed_summaries.data, scratch.mixed_key_sums.data,
                             plan.extents, unit.orientation, groups.begin(group),
                             groups.size(group), mixes_key_sums<L>);
  const Panel<const A> rows =
      unit_mixing(plan, unit, matrix).row_range(mixed.first, groups.size(group));
  const auto mix_rows = [&](const Panel<A>& from, const Panel<A>& to) {
    if constexpr (sees_past_only<L>) {
      mix_past<A>(rows, plan.problem.queries.first + mixed.first, lag_of(sight_of<L>), from, to);
    } else {
      mix<A>(rows, from, to);
    }
  };
  if (summaries_wanted) mix_rows(unit.summaries.summaries, mixed.summaries);
  if constexpr (mixes_key_sums<L>) mix_rows(unit.summaries.key_sums, mixed.key_sums);
  return mixed;
}

/// The keys and values of a causal query tile's own block, in the scratch of a slot.
template <class A>
struct OwnTile {
  Panel<A> features;      // m_ii phi(k)
  Panel<A> rotated;       // the same, rotated
  Panel<const A> values;  // v
  Panel<A> key_sums;      // p_t; no rows without a normalizer
  Panel<A> scores;        // scratch
};

/// Packs a query tile's own keys, and advances z~_i to p of the tile's last token.
template <class L, class T, class A>
OwnTile<A> pack_own_keys(const Operands<L, T>& operands, const Unit<A>& unit, const TokenTile& tile,
                         A own_weight, Span<A> running_key_sum, const SlotScratch<A>& scratch) {
  const Plan<L, A>& plan = operands.plan;
  const Extents& e = plan.extents;
  const OwnTile<A> own{
      panel((normalizes<L> ? scratch.own.features : scratch.own.rotated).data, tile.tokens,
            e.feature_dim),
      panel(scratch.own.rotated.data, tile.tokens, e.feature_dim),
      {},
      panel(scratch.own.key_sums.data, normalizes<L> ? tile.tokens : 0, e.feature_dim),
      panel(scratch.own.scores.data, tile.tokens, tile.tokens)};
  pack_features(operands.variant.feature_map, plan.rotation, own_weight, plan.tables.queries, tile,
                key_rows(unit, operands.k), own.features, own.rotated, scratch.row);
  if constexpr (normalizes<L>) {
    if (tile.offset == 0) std::fill_n(scratch.key_sum_rest.data, e.feature_dim, A(0));
    running_key_sums<A>(own.features, A(1), {running_key_sum, scratch.key_sum_rest}, own.key_sums);
  }
  return own;
}

/// The same, and its values.
template <class L, class T, class A>
OwnTile<A> pack_own_tile(const Operands<L, T>& operands, const Unit<A>& unit, const TokenTile& tile,
                         A own_weight, Span<A> running_key_sum, const SlotScratch<A>& scratch) {
  OwnTile<A> own = pack_own_keys(operands, unit, tile, own_weight, running_key_sum, scratch);
  own.values = readable_panel<T>(operands.plan.tables.queries, tile, key_rows(unit, operands.v),
                                 scratch.own.values);
  return own;
}

/// A tile of query block `block` on a slot, for one matrix and all its query heads in turn.
template <class A>
struct QueryTile {
  Index matrix;
  Index block;
  Index index;                  // of the tile in the table
  const SummaryRows<A>& mixed;  // S~ and z~ of its group of blocks
  const SlotScratch<A>& scratch;
  OwnTile<A> own{};  // under Causal
};

/// Calls run(at, g) for every tile of a query block and every query head g of one matrix.
template <class L, class T, class A, class Run>
void for_each_tile_of_block(const Operands<L, T>& operands, const Unit<A>& unit, bool own_wanted,
                            const QueryTile<A>& first, const Run& run) {
  const Plan<L, A>& plan = operands.plan;
  const BlockTable& table = plan.tables.queries;
  const auto& [matrix, i, index, mixed, scratch, own] = first;
  const Index end = index + table.blocks[unit.queries.first_block + i].tiles;
  for (Index t = index; t < end; ++t) {
    QueryTile<A> at{matrix, i, t, mixed, scratch};
    if constexpr (masks_own_block<L>)
      at.own = pack_own_tile(operands, unit, table.tiles[t], own_weight(plan, unit, matrix, i),
                             mixed.key_sum(i), scratch);
    for (Index g = plan.heads_of(matrix).first; g < plan.heads_of(matrix).last; ++g) run(at, g);
    if constexpr (masks_own_block<L>)
      if (own_wanted && t + 1 < end)
        absorb_own_tile<A>(at.own.rotated, at.own.values, unit.orientation, mixed.summary(i));
  }
}

/// Calls run(at, g) for every tile of the unit's query blocks and every query head g. S~ is mixed
/// only if it is needed. A structured mixing takes one matrix after the other, `after(matrix)` it.
template <class L, class T, class A, class Run, class After>
void for_each_query_tile(const Operands<L, T>& operands, const Unit<A>& unit, bool summaries_wanted,
                         const ExecutorRef& loop, const Run& run, const After& after) {
  const Plan<L, A>& plan = operands.plan;
  const auto run_group = [&](const RowGroups& groups, Index group, Index matrix,
                             const SummaryRows<A>& mixed, const SlotScratch<A>& scratch) {
    for (Index i = groups.begin(group); i < groups.begin(group + 1); ++i) {
      const BlockSpan& block = plan.tables.queries.blocks[unit.queries.first_block + i];
      for_each_tile_of_block(operands, unit, summaries_wanted,
                             QueryTile<A>{matrix, i, block.first_tile, mixed, scratch}, run);
    }
  };
  if constexpr (factors_mixing<L>) {
    const RowGroups blocks(unit.queries.blocks, 1);
    for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) {
      const SummaryRows<A> mixed = mix_unit(plan, unit, matrix, loop, summaries_wanted);
      loop.parallel_for(blocks.count, [&](Index block, Index slot) {
        run_group(blocks, block, matrix, mixed, plan.scratch[slot]);
      });
      after(matrix);
    }
  } else {
    const RowGroups groups = shared_row_groups<L>(
        plan.extents, unit.queries.blocks, unit.keys.blocks, Into::overwrite, loop.num_slots());
    loop.parallel_for(groups.count, [&](Index group, Index slot) {
      const SlotScratch<A>& scratch = plan.scratch[slot];
      for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix)
        run_group(groups, group, matrix,
                  mix_group(plan, unit, matrix, groups, group, scratch, summaries_wanted), scratch);
    });
  }
}

/// The denominators of a tile of query head g; empty without a normalizer.
template <class L, class T, class A>
Span<const A> tile_denominators(const Operands<L, T>& operands, const Unit<A>& unit,
                                const QueryTile<A>& at, Index g, const Panel<A>& features) {
  if constexpr (mixes_key_sums<L>) {
    const Span<A> denominators{at.scratch.denominators.data, features.rows};
    const A epsilon = static_cast<A>(operands.variant.normalizer.epsilon);
    if constexpr (masks_own_block<L>) {
      mixed_key_sum_denominators<A>(features, at.own.key_sums, epsilon, denominators);
    } else {
      mixed_key_sum_denominators<A>(features, at.mixed.key_sum(at.block), epsilon, denominators);
    }
    return denominators;
  } else if constexpr (mixes_products<L>) {
    const Plan<L, A>& plan = operands.plan;
    return tile_offsets(plan.extents, unit.memory.denominators, g, at.block,
                        plan.tables.queries.tiles[at.index]);
  } else {
    return {};
  }
}

/// y of a tile of query head g.
template <class L, class T, class A>
void read_out_tile(const Operands<L, T>& operands, const Unit<A>& unit, const QueryTile<A>& at,
                   Index g, const TensorView<T, 4>& y) {
  const Plan<L, A>& plan = operands.plan;
  const BlockTable& table = plan.tables.queries;
  const TokenTile& tile = table.tiles[at.index];
  const TokenRows<const T> queries = query_rows(plan, unit, g, operands.q);
  const TokenRows<T> results = query_rows(plan, unit, g, y);
  const FeaturePanels<A> q = pack_query_tile(operands, unit, g, tile, at.scratch);
  const Span<const A> denominators = tile_denominators(operands, unit, at, g, q.features);
  Prefetch next = prefetch_tile(table, unit.queries, at.index + 1, {queries, results});
  if constexpr (masks_own_block<L>)
    next =
        prefetch_tile(table, unit.queries, at.index + 1,
                      {queries, results, key_rows(unit, operands.k), key_rows(unit, operands.v)});
  const BlockSpan& block = table.blocks[unit.queries.first_block + at.block];
  prefetch_summary(at.mixed, at.block + 1, at.index - block.first_tile, block.tiles, next);

  const Panel<A> mixed_summary = at.mixed.summary(at.block);
  const Span<A> inverses{at.scratch.inverses.data, denominators.size};
  const bool invertible = invert<A>(denominators, inverses);
  if (!masks_own_block<L> && invertible && is_in_place_of_products<A>(results))
    return read_out<A>(q.rotated, mixed_summary, inverses,
                       in_place_of_products<A>(table, tile, results), &next);
  const Panel<A> there =
      denominators.size == 0 ? panel_in_place<A>(table, tile, results) : Panel<A>{};
  const Panel<A> out =
      there.rows > 0 ? there : panel(at.scratch.values.data, tile.tokens, plan.extents.value_dim);
  // The own block's contribution is added before the rows are scaled.
  const bool scaled = !masks_own_block<L> && invertible;
  read_out<A>(q.rotated, mixed_summary, scaled ? inverses : Span<A>{}, out.placed(), &next);
  if constexpr (masks_own_block<L>)
    read_out_own_tile<A>(q.rotated, at.own.rotated, at.own.values, at.own.scores, out);
  if (there.rows > 0) return;
  if (!invertible) divide_rows<A>(out, denominators);
  scatter<T, A>(table, tile, out, invertible && !scaled ? inverses : Span<A>{}, results,
                Update::overwrite);
}

/// y of every query block of the unit's query heads.
template <class L, class T, class A>
void read_out_unit(const Operands<L, T>& operands, const Unit<A>& unit, const TensorView<T, 4>& y,
                   const ExecutorRef& loop) {
  if constexpr (mixes_products<L>) mixed_products_of_unit(operands, unit, loop);
  for_each_query_tile(
      operands, unit, true, loop,
      [&](const QueryTile<A>& at, Index g) { read_out_tile(operands, unit, at, g, y); },
      [](Index) {});
}

}  // namespace cpu

MHLA_NAMESPACE_END
