// SPDX-License-Identifier: MIT
// The forward pass of one unit by the scores of all pairs (scores.hpp): cheaper than summaries
// where blocks are short, or the sequence is.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/quadratic/keys.hpp>
#include <mhla/cpu/quadratic/scores.hpp>
#include <mhla/cpu/readout.hpp>
#include <mhla/cpu/tiles.hpp>
#include <mhla/cpu/unit.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::quadratic {

/// num and, before epsilon, den of a tile of queries: den has no elements without a normalizer.
template <class A>
MHLA_OUT_OF_LINE void read_out_scores(const Weights<A>& weights, const QueryRange& tile,
                                      Span<const KeyRange> ranges, const FeaturePanels<A>& q,
                                      const Panel<const A>& keys_transposed,
                                      const Panel<const A>& unrotated_transposed,
                                      const Panel<const A>& values, const Scratch<A>& scratch,
                                      const Panel<A>& numerators, Span<A> denominators) {
  if (ranges.size == 0) set_zero(numerators);
  std::fill_n(denominators.data, denominators.size, A(0));
  const bool same = unrotated_transposed.rows == 0;
  const Index last = weights.block_of(tile.end - 1);
  for (const KeyRange& range : ranges) {
    const Index seen = weights.seen(tile.end - 1, last, range);
    if (seen == 0) break;
    const auto scores_of = [&](const Panel<A>& rows, const Panel<const A>& keys, Span<A> memory) {
      const Panel<A> scores{memory.data, rows.rows, seen, key_stride(seen)};
      multiply(scores, rows, keys.col_range(range.first, seen));
      return scores;
    };
    if (!same)
      weigh(weights, tile, range, scores_of(q.features, unrotated_transposed, scratch.unrotated),
            scratch.weights, denominators);
    const Panel<A> scores = scores_of(q.rotated, keys_transposed, scratch.scores);
    weigh(weights, tile, range, scores, scratch.weights, same ? denominators : Span<A>{});
    multiply_keys<A>(weights, tile, range, scores, values.row_range(range.first, seen), numerators,
                     range.first == 0 ? Into::overwrite : Into::add, scratch.square);
  }
}

template <class L, class T, class A>
void forward_unit(const Operands<L, T>& operands, const Unit<A>& unit, const TensorView<T, 4>& y,
                  const ExecutorRef& loop) {
  const Plan<L, A>& plan = operands.plan;
  const QuadraticUnit<L, T> of(operands, unit);
  of.pack_keys(loop);
  const BlockTable& table = plan.tables.queries;
  const Index tiles = of.query_tiles.size;
  loop.parallel_for(plan.extents.group_size * tiles, [&](Index task, Index slot) {
    const Index g = task / tiles;
    const TokenTile& tile = of.query_tiles[task % tiles];
    const SlotScratch<A>& scratch = plan.scratch[slot];
    const FeaturePanels<A> q = pack_query_tile(operands, unit, g, tile, scratch);
    const Panel<A> out = panel(scratch.values.data, tile.tokens, plan.extents.value_dim);
    const Span<A> denominators{scratch.denominators.data, normalizes<L> ? tile.tokens : 0};
    read_out_scores<A>(of.weights(g), {tile.offset, tile.offset + tile.tokens}, of.ranges, q,
                       of.keys_transposed(), of.unrotated_transposed(), of.values(),
                       scratch.quadratic, out, denominators);
    if constexpr (normalizes<L>)
      for (Index t = 0; t < tile.tokens; ++t)
        denominators[t] += static_cast<A>(operands.variant.normalizer.epsilon);
    const Span<A> inverses{scratch.inverses.data, denominators.size};
    const bool invertible = invert<A>(denominators, inverses);
    if (!invertible) divide_rows<A>(out, denominators);
    scatter<T, A>(table, tile, out, invertible ? inverses : Span<A>{}, query_rows(plan, unit, g, y),
                  Update::overwrite);
  });
}

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
