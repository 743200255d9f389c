// SPDX-License-Identifier: MIT
// A unit on the quadratic path, and its forward pass by the scores of all pairs (scores.hpp):
// cheaper than summaries where blocks are short, or the sequence is.
#pragma once

#include <mhla/cpu/unit.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::quadratic {

/// A unit at work on the quadratic path.
template <class L, class T>
struct QuadraticUnit {
  using A = Accumulator<T>;

  const Unit<L, T>& unit;
  const Memory<A>& memory;
  Span<const TokenTile> query_tiles;
  Span<const TokenTile> key_tiles;
  Span<const KeyRange> ranges;

  MHLA_ONCE_A_CALL QuadraticUnit(const Unit<L, T>& at)
      : unit(at),
        memory(at.memory.quadratic),
        query_tiles(at.queries.tiles()),
        key_tiles(at.keys.tiles()),
        ranges{memory.ranges.data, cut_keys(at.keys.all(), memory.ranges)} {}

  MHLA_ONCE_A_CALL Weights<A, sight_of<L>> weights(Index matrix) const {
    return {unit.queries.all(), unit.keys.all(), unit.mixing(matrix)};
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
  const Unit<L, T>& unit = of.unit;
  const Memory<A>& memory = of.memory;
  const TokenRows<const T> value_rows = unit.key_rows(unit.operands.v);
  Panel<const A> values;  // in place, if one tile has all of v
  if (of.key_tiles.size == 1)
    values = panel_in_place<const A>(unit.keys.table, of.key_tiles[0], value_rows);
  const bool in_place = values.rows > 0;
  if (!in_place) values = memory.values;
  loop.parallel_for(of.key_tiles.size, [&](Index task, Index slot) MHLA_ONCE_A_CALL {
    const TokenTile& tile = of.key_tiles[task];
    of.keep_transposed(tile, pack_key_tile(unit, tile, unit.plan().scratch[slot]));
    if (!in_place)
      gather<T, A>(unit.keys.table, tile, value_rows, {},
                   memory.values.row_range(tile.offset, tile.tokens));
  });
  const Index tiles = of.query_tiles.size;
  loop.parallel_for(unit.extents().group_size * tiles, [&](Index task,
                                                           Index slot) MHLA_ONCE_A_CALL {
    const Index g = task / tiles;
    const TokenTile& tile = of.query_tiles[task % tiles];
    const SlotScratch<A>& scratch = unit.plan().scratch[slot];
    const FeaturePanels<A> q = pack_query_tile(unit, g, tile, scratch);
    const Panel<A> out = panel(scratch.values.data, tile.tokens, unit.extents().value_dim);
    const Span<A> denominators{scratch.denominators.data, normalizes<L> ? tile.tokens : 0};
    read_out_scores<A>(of.weights(g), tile,
                       {of.ranges, memory.rotated.transposed, memory.unrotated.transposed, values},
                       q.features, q.rotated, scratch.quadratic, out, denominators);
    if constexpr (normalizes<L>)
      for (Index t = 0; t < tile.tokens; ++t)
        denominators[t] += static_cast<A>(unit.operands.variant.normalizer.epsilon);
    const Span<A> inverses{scratch.inverses.data, denominators.size};
    const bool invertible = invert<A>(denominators, inverses);
    if (!invertible) divide_rows<A>(out, denominators);
    scatter<T, A>(unit.queries.table, tile, out, invertible ? inverses : Span<A>{},
                  unit.query_rows(g, y), Update::overwrite);
  });
}

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
