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

/// A unit's forward pass: slots share its tiles of queries.
template <class L, class T>
class ForwardUnit {
 public:
  using A = Accumulator<T>;

  ForwardUnit(const Operands<L, T>& operands, const Unit<A>& unit, const TensorView<T, 4>& y)
      : of_(operands, unit), y_(y) {}

  MHLA_ONCE_A_CALL void run(const ExecutorRef& loop) const {
    of_.pack_keys(loop);
    const Index tiles = of_.query_tiles.size;
    loop.parallel_for(of_.extents().group_size * tiles, [&](Index task, Index slot) {
      run_tile(task / tiles, of_.query_tiles[task % tiles], slot);
    });
  }

 private:
  // Optimized for size, as it calls what takes the time.
  MHLA_ONCE_A_CALL void run_tile(Index g, const TokenTile& tile, Index slot) const {
    const Plan<L, A>& plan = of_.operands.plan;
    const SlotScratch<A>& scratch = plan.scratch[slot];
    const FeaturePanels<A> q = pack_query_tile(of_.operands, of_.unit, g, tile, scratch);
    const Panel<A> out = panel(scratch.values.data, tile.tokens, plan.extents.value_dim);
    const Span<A> denominators{scratch.denominators.data, normalizes<L> ? tile.tokens : 0};
    read_out_scores<A>(of_.weights(g), {tile.offset, tile.offset + tile.tokens},
                       of_.key_panels(of_.values()), q.features, q.rotated, scratch.quadratic, out,
                       denominators);
    if constexpr (normalizes<L>)
      for (Index t = 0; t < tile.tokens; ++t)
        denominators[t] += static_cast<A>(of_.operands.variant.normalizer.epsilon);
    const Span<A> inverses{scratch.inverses.data, denominators.size};
    const bool invertible = invert<A>(denominators, inverses);
    if (!invertible) divide_rows<A>(out, denominators);
    scatter<T, A>(plan.tables.queries, tile, out, invertible ? inverses : Span<A>{},
                  query_rows(plan, of_.unit, g, y_), Update::overwrite);
  }

  QuadraticUnit<L, T> of_;
  const TensorView<T, 4>& y_;
};

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
