// SPDX-License-Identifier: MIT
// A unit on the quadratic path, and its forward pass by the scores of all pairs (scores.hpp):
// cheaper than summaries where blocks are short, or the sequence is.
#pragma once

#include <mhla/cpu/tiles.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::quadratic {

inline Span<const BlockSpan> blocks_of(const BlockTable& table, const SequenceSpan& sequence) {
  return {table.blocks.data + sequence.first_block, sequence.blocks};
}

/// The tiles of a sequence.
inline Span<const TokenTile> tiles_of(const BlockTable& table, const SequenceSpan& sequence) {
  if (sequence.blocks == 0) return {};
  return table.tiles_of(table.blocks[sequence.first_block]);
}

/// A unit at work on the quadratic path.
template <class L, class T>
struct QuadraticUnit {
  using A = Accumulator<T>;

  const Operands<L, T>& operands;
  const Unit<A>& unit;
  const Plan<L, A>& plan;
  const Memory<A>& memory;
  Span<const TokenTile> query_tiles;
  Span<const TokenTile> key_tiles;
  Span<const BlockSpan> key_blocks;
  Span<const KeyRange> ranges;

  MHLA_ONCE_A_CALL QuadraticUnit(const Operands<L, T>& of, const Unit<A>& at)
      : operands(of),
        unit(at),
        plan(of.plan),
        memory(at.memory.quadratic),
        query_tiles(tiles_of(plan.tables.queries, at.queries)),
        key_tiles(tiles_of(plan.tables.keys, at.keys)),
        key_blocks(blocks_of(plan.tables.keys, at.keys)),
        ranges{memory.ranges.data, cut_keys(key_blocks, memory.ranges)} {}

  MHLA_ONCE_A_CALL Weights<A, sight_of<L>> weights(Index matrix) const {
    return {blocks_of(plan.tables.queries, unit.queries), key_blocks,
            unit_mixing(plan, unit, matrix)};
  }

  /// Keeps the features of a tile of keys transposed.
  MHLA_ONCE_A_CALL void keep_transposed(const TokenTile& tile, const FeaturePanels<A>& k) const {
    const auto keep = [&](const FeatureMemory<A>& in, const Panel<A>& features) {
      if (in.transposed.rows > 0)
        transpose<A>(in.transposed.col_range(tile.offset, tile.tokens), features);
    };
    keep(memory.rotated, k.rotated);
    keep(memory.unrotated, k.features);
  }
};

/// y of a unit: slots share its tiles of queries.
template <class L, class T>
MHLA_ONCE_A_CALL void read_out_unit(const QuadraticUnit<L, T>& of, const TensorView<T, 4>& y,
                                    const ExecutorRef& loop) {
  using A = Accumulator<T>;
  const Plan<L, A>& plan = of.plan;
  const Memory<A>& memory = of.memory;
  const TokenRows<const T> value_rows = key_rows(of.unit, of.operands.v);
  Panel<const A> values;  // in place, if one tile has all of v
  if (of.key_tiles.size == 1)
    values = panel_in_place<const A>(plan.tables.keys, of.key_tiles[0], value_rows);
  const bool in_place = values.rows > 0;
  if (!in_place) values = memory.values;
  loop.parallel_for(of.key_tiles.size, [&](Index task, Index slot) MHLA_ONCE_A_CALL {
    const TokenTile& tile = of.key_tiles[task];
    const SlotScratch<A>& scratch = plan.scratch[slot];
    of.keep_transposed(tile, pack_tile(of.operands, A(1), plan.tables.keys, tile,
                                       key_rows(of.unit, of.operands.k), scratch));
    if (!in_place)
      gather<T, A>(plan.tables.keys, tile, value_rows, {},
                   memory.values.row_range(tile.offset, tile.tokens));
  });
  const Index tiles = of.query_tiles.size;
  loop.parallel_for(plan.extents.group_size * tiles, [&](Index task, Index slot) MHLA_ONCE_A_CALL {
    const Index g = task / tiles;
    const TokenTile& tile = of.query_tiles[task % tiles];
    const SlotScratch<A>& scratch = plan.scratch[slot];
    const FeaturePanels<A> q = pack_query_tile(of.operands, of.unit, g, tile, scratch);
    const Panel<A> out = panel(scratch.values.data, tile.tokens, plan.extents.value_dim);
    const Span<A> denominators{scratch.denominators.data, normalizes<L> ? tile.tokens : 0};
    read_out_scores<A>(of.weights(g), tile,
                       {of.ranges, memory.rotated.transposed, memory.unrotated.transposed, values},
                       q.features, q.rotated, scratch.quadratic, out, denominators);
    if constexpr (normalizes<L>)
      for (Index t = 0; t < tile.tokens; ++t)
        denominators[t] += static_cast<A>(of.operands.variant.normalizer.epsilon);
    const Span<A> inverses{scratch.inverses.data, denominators.size};
    const bool invertible = invert<A>(denominators, inverses);
    if (!invertible) divide_rows<A>(out, denominators);
    scatter<T, A>(plan.tables.queries, tile, out, invertible ? inverses : Span<A>{},
                  query_rows(plan, of.unit, g, y), Update::overwrite);
  });
}

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
