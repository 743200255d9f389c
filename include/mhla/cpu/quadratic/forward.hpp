// SPDX-License-Identifier: MIT
// The forward pass of one unit by the scores of all pairs (scores.hpp): cheaper than summaries
// where blocks are short, or the sequence is.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/plan.hpp>
#include <mhla/cpu/quadratic/keys.hpp>
#include <mhla/cpu/quadratic/scores.hpp>
#include <mhla/cpu/readout.hpp>
#include <mhla/cpu/tiles.hpp>

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
    loop.parallel_for(of_.key_tiles.size, [&](Index tile, Index slot) {
      pack_tile(of_.key_tiles[tile], of_.operands.plan.scratch[slot]);
    });
    const Index tiles = of_.query_tiles.size;
    loop.parallel_for(of_.extents().group_size * tiles, [&](Index task, Index slot) {
      run_tile(task / tiles, of_.query_tiles[task % tiles], slot);
    });
  }

 private:
  const Plan<L, A>& plan() const { return of_.operands.plan; }
  TokenRows<const T> value_rows() const { return key_rows(of_.unit, of_.operands.v); }

  /// v in place, if one tile has all of it.
  Panel<const A> values_in_place() const {
    if (of_.key_tiles.size != 1) return {};
    return panel_in_place<const A>(plan().tables.keys, of_.key_tiles[0], value_rows());
  }
  Panel<A> packed_values() const {
    return key_panel(of_.memory.values, of_.key_tokens, of_.extents().value_dim);
  }

  MHLA_ONCE_A_CALL void pack_tile(const TokenTile& tile, const SlotScratch<A>& scratch) const {
    const auto features = [&](Span<A> memory) {
      return panel(memory.data, tile.tokens, of_.extents().feature_dim);
    };
    const Panel<A> rotated = features(scratch.rotated);
    of_.pack_keys(tile, {of_.unrotated_too() ? features(scratch.features) : rotated, rotated},
                  scratch.row);
    if (values_in_place().rows == 0)
      gather<T, A>(plan().tables.keys, tile, value_rows(), {},
                   packed_values().row_range(tile.offset, tile.tokens));
  }
  MHLA_ONCE_A_CALL void run_tile(Index g, const TokenTile& tile, Index slot) const {
    const SlotScratch<A>& scratch = plan().scratch[slot];
    const FeaturePanels<A> q = pack_query_tile(of_.operands, of_.unit, g, tile, scratch);
    const Panel<A> out = panel(scratch.values.data, tile.tokens, of_.extents().value_dim);
    const Span<A> denominators{scratch.denominators.data, normalizes<L> ? tile.tokens : 0};
    const Panel<const A> in_place = values_in_place();
    read_out_scores<A>(of_.weights(g), {tile.offset, tile.offset + tile.tokens},
                       of_.key_panels(in_place.rows > 0 ? in_place : packed_values()), q.features,
                       q.rotated, scratch.quadratic, out, denominators);
    if constexpr (normalizes<L>)
      for (Index t = 0; t < tile.tokens; ++t)
        denominators[t] += static_cast<A>(of_.operands.variant.normalizer.epsilon);
    const Span<A> inverses{scratch.inverses.data, denominators.size};
    const bool invertible = invert<A>(denominators, inverses);
    if (!invertible) divide_rows<A>(out, denominators);
    scatter<T, A>(plan().tables.queries, tile, out, invertible ? inverses : Span<A>{},
                  query_rows(plan(), of_.unit, g, y_), Update::overwrite);
  }

  QuadraticUnit<L, T> of_;
  const TensorView<T, 4>& y_;
};

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
