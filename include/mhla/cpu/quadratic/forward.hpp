// SPDX-License-Identifier: MIT
// The forward pass of one unit by the scores of all pairs (scores.hpp): cheaper than summaries
// where blocks are short, or the sequence is.
#pragma once

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

/// y of the unit's queries.
template <class L, class T, class A>
void forward_unit(const Operands<L, T>& operands, const Unit<A>& unit, const TensorView<T, 4>& y,
                  const ExecutorRef& loop) {
  const Plan<L, A>& plan = operands.plan;
  const QuadraticUnit<L, T> of(operands, unit);
  of.pack_keys(loop);
  const KeyPanels<A> keys = of.key_panels(of.values());
  const BlockTable& table = plan.tables.queries;
  const Index tiles = of.query_tiles.size;
  loop.parallel_for(plan.extents.group_size * tiles, [&](Index task, Index slot) {
    const Index g = task / tiles;
    const TokenTile& tile = of.query_tiles[task % tiles];
    const SlotScratch<A>& scratch = plan.scratch[slot];
    const FeaturePanels<A> q = pack_query_tile(operands, unit, g, tile, scratch);
    const Panel<A> out = panel(scratch.values.data, tile.tokens, plan.extents.value_dim);
    const Span<A> denominators{scratch.denominators.data, normalizes<L> ? tile.tokens : 0};
    read_out_scores<A>(of.weights(g), {tile.offset, tile.offset + tile.tokens}, keys, q.features,
                       q.rotated, scratch.quadratic, out, denominators);
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
