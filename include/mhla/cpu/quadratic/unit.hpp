// SPDX-License-Identifier: MIT
// A unit on the quadratic path: its passes by the scores of all pairs (scores.hpp), cheaper than
// summaries where blocks are short, or the sequence is.
#pragma once

#include <mhla/cpu/token_block.hpp>

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
    const SlotScratch<A>& scratch = unit.plan.scratch[slot];
    of.keep_transposed(tile, pack_features(key_features(unit, tile), scratch));
    if (!in_place)
      gather<T, A>(unit.keys.table, tile, value_rows, {},
                   memory.values.row_range(tile.offset, tile.tokens));
  });
  const Index tiles = of.query_tiles.size;
  loop.parallel_for(unit.extents().group_size * tiles, [&](Index task,
                                                           Index slot) MHLA_ONCE_A_CALL {
    const Index g = task / tiles;
    const TokenTile& tile = of.query_tiles[task % tiles];
    const SlotScratch<A>& scratch = unit.plan.scratch[slot];
    const FeaturePanels<A> q = pack_features(query_features(unit, g, tile), scratch);
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

/// A unit's backward pass: tile by tile of its queries, whose ranges of keys slots share.
template <class L, class T>
class BackwardUnit {
 public:
  using A = Accumulator<T>;

  BackwardUnit(const Unit<L, T>& unit, const BackwardRequest<L, T>& request)
      : of_(unit), unit_(unit), request_(request) {}

  MHLA_ONCE_A_CALL void run(const ExecutorRef& loop) const {
    const Memory<A>& m = of_.memory;
    loop.parallel_for(of_.key_tiles.size, [&](Index tile, Index slot) {
      pack_keys(of_.key_tiles[tile], unit_.plan.scratch[slot]);
    });
    if (is_causal<L> || unit_.extents().group_size * of_.query_tiles.size == 0) {
      set_zero(m.rotated.grad_keys);
      set_zero(m.unrotated.grad_keys);
      set_zero(m.grad_values);
    }
    for (Index g = 0; g < unit_.extents().group_size; ++g) {
      const Weights<A, sight_of<L>> weights = of_.weights(g);
      for (const TokenTile& tile : of_.query_tiles) run_tile(g, weights, tile, loop);
    }
    loop.parallel_for(of_.key_tiles.size, [&](Index tile, Index slot) {
      unpack_keys(of_.key_tiles[tile], unit_.plan.scratch[slot]);
    });
  }

 private:
  bool unrotated_too() const { return of_.memory.unrotated.keys.rows > 0; }
  RowBuffers<A> row() const { return {of_.memory.input, of_.memory.gradient}; }
  // A tile's panels, in the unit's memory.
  FeaturePanels<A> features(const TokenTile& tile, Index first,
                            Panel<A> FeatureMemory<A>::*of) const {
    const auto rows = [&](const FeatureMemory<A>& in) {
      return (in.*of).row_range(first, tile.tokens);
    };
    const Panel<A> rotated = rows(of_.memory.rotated);
    return {unrotated_too() ? rows(of_.memory.unrotated) : rotated, rotated};
  }

  MHLA_ONCE_A_CALL void pack_keys(const TokenTile& tile, const SlotScratch<A>& scratch) const {
    const FeaturePanels<A> k = features(tile, tile.offset, &FeatureMemory<A>::keys);
    pack_features(key_features(unit_, tile), k, scratch.row);
    of_.keep_transposed(tile, k);
    transpose<A>(of_.memory.values.col_range(tile.offset, tile.tokens),
                 readable_panel<T>(unit_.keys.table, tile, unit_.key_rows(unit_.operands.v),
                                   scratch.values));
  }

  MHLA_ONCE_A_CALL void run_tile(Index g, const Weights<A, sight_of<L>>& weights,
                                 const TokenTile& tile, const ExecutorRef& loop) const {
    const Memory<A>& m = of_.memory;
    pack_features(query_features(unit_, g, tile), features(tile, 0, &FeatureMemory<A>::queries),
                  row());
    const Panel<const A> grad_outputs = readable_panel<T>(
        unit_.queries.table, tile, unit_.query_rows(g, request_.dy), m.grad_outputs);
    const bool overwrites = !is_causal<L> && g == 0 && tile.offset == 0;
    const TileGradient<A, sight_of<L>> at{
        weights,
        tile,
        of_.ranges,
        m,
        grad_outputs,
        normalizes<L> ? m.grad_numerators.row_range(0, tile.tokens) : grad_outputs,
        normalizes<L>,
        request_.query(),
        request_.gradients.key.wanted,
        request_.gradients.value.wanted,
        overwrites ? Into::overwrite : Into::add,
        request_.mixing() ? mixing_gradient(unit_.extents().matrices == 1 ? 0 : g) : Panel<A>{}};
    Index seen = 0;  // ranges
    while (seen < of_.ranges.size && at.with(seen).seen() > 0) ++seen;
    loop.parallel_for(seen, [&](Index r, Index slot) {
      at.score(r, unit_.plan.scratch[slot].quadratic.weights);
    });
    if constexpr (normalizes<L>)
      at.divide(seen, static_cast<A>(unit_.operands.variant.normalizer.epsilon));
    loop.parallel_for(seen, [&](Index r, Index slot) {
      at.add_gradients(r, unit_.plan.scratch[slot].quadratic);
    });
    if (!request_.query()) return;
    FeatureGradients<A> total{sum_of_ranges(m.rotated, tile.tokens, seen)};
    if (unrotated_too()) total.unrotated = sum_of_ranges(m.unrotated, tile.tokens, seen).placed();
    unpack_query_gradient(unit_, request_, g, tile, total, row());
  }

  Panel<A> mixing_gradient(Index matrix) const {
    return {unit_.memory.grad_mixing.row(matrix), unit_.queries.blocks, unit_.keys.blocks,
            unit_.plan.problem.key_blocks};
  }

  /// The sum of a tile's ranges, in their order.
  static Panel<A> sum_of_ranges(const FeatureMemory<A>& in, Index rows, Index ranges) {
    const Panel<A> sum = in.grad_queries.row_range(0, rows);
    if (ranges == 0) set_zero(sum);
    for (Index r = 1; r < ranges; ++r)
      add_scaled(sum, A(1), in.grad_queries.row_range(r * in.queries.rows, rows));
    return sum;
  }

  MHLA_ONCE_A_CALL void unpack_keys(const TokenTile& tile, const SlotScratch<A>& scratch) const {
    if (request_.gradients.key.wanted) {
      const FeaturePanels<A> k = features(tile, tile.offset, &FeatureMemory<A>::grad_keys);
      FeatureGradients<A> total{k.rotated};
      if (unrotated_too()) total.unrotated = k.features.placed();
      unpack_feature_gradient(key_features(unit_, tile), total,
                              unit_.key_rows(request_.gradients.key.view), request_.update,
                              scratch.row);
    }
    if (request_.gradients.value.wanted)
      scatter<T, A>(unit_.keys.table, tile,
                    of_.memory.grad_values.row_range(tile.offset, tile.tokens), {},
                    unit_.key_rows(request_.gradients.value.view), request_.update);
  }

  QuadraticUnit<L, T> of_;
  const Unit<L, T>& unit_;
  const BackwardRequest<L, T>& request_;
};

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
