// SPDX-License-Identifier: MIT
// The backward pass of one unit by the scores of all pairs: the adjoint of forward.hpp.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/backward_unit.hpp>
#include <mhla/cpu/plan.hpp>
#include <mhla/cpu/quadratic/keys.hpp>
#include <mhla/cpu/quadratic/score_gradients.hpp>
#include <mhla/cpu/quadratic/scores.hpp>
#include <mhla/cpu/tiles.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::quadratic {

/// A unit's backward pass: tile by tile of its queries, whose ranges of keys slots share.
template <class L, class T>
class BackwardUnit {
 public:
  using A = Accumulator<T>;

  BackwardUnit(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
               const Unit<A>& unit)
      : of_(operands, unit), request_(request) {}

  MHLA_ONCE_A_CALL void run(const ExecutorRef& loop) const {
    loop.parallel_for(of_.key_tiles.size, [&](Index tile, Index slot) {
      pack_keys(of_.key_tiles[tile], plan().scratch[slot]);
    });
    if (is_causal<L> || extents().group_size * of_.query_tiles.size == 0) {
      const auto clear_sums = [](Span<A> sums) { std::fill_n(sums.data, sums.size, A(0)); };
      clear_sums(memory().grad_keys);
      clear_sums(memory().grad_unrotated);
      clear_sums(memory().grad_values);
    }
    for (Index g = 0; g < extents().group_size; ++g) {
      const Weights<A, sight_of<L>> weights = of_.weights(g);
      for (const TokenTile& tile : of_.query_tiles) run_tile(g, weights, tile, loop);
    }
    loop.parallel_for(of_.key_tiles.size, [&](Index tile, Index slot) {
      unpack_keys(of_.key_tiles[tile], plan().scratch[slot]);
    });
  }

 private:
  const Plan<L, A>& plan() const { return of_.operands.plan; }
  const Extents& extents() const { return plan().extents; }
  const BackwardMemory<A>& memory() const { return of_.memory.backward; }
  Panel<A> values_transposed() const {
    return key_columns(memory().values_transposed, extents(), extents().value_dim, of_.key_tokens);
  }

  MHLA_ONCE_A_CALL void pack_keys(const TokenTile& tile, const SlotScratch<A>& scratch) const {
    const auto features = [&](Span<A> memory) {
      return key_panel(memory, of_.key_tokens, extents().feature_dim)
          .row_range(tile.offset, tile.tokens);
    };
    const Panel<A> rotated = features(memory().keys);
    of_.pack_keys(tile,
                  {of_.unrotated_too() ? features(memory().unrotated_keys) : rotated, rotated},
                  scratch.row);
    transpose<A>(values_transposed().col_range(tile.offset, tile.tokens),
                 readable_panel<T>(plan().tables.keys, tile, key_rows(of_.unit, of_.operands.v),
                                   scratch.values));
  }

  MHLA_ONCE_A_CALL void run_tile(Index g, const Weights<A, sight_of<L>>& weights,
                                 const TokenTile& tile, const ExecutorRef& loop) const {
    const BackwardMemory<A>& m = memory();
    const Extents& e = extents();
    const BlockTable& table = plan().tables.queries;
    const TokenRows<const T> dy = query_rows(plan(), of_.unit, g, request_.dy);
    const Panel<A> gathered = panel(m.grad_outputs.data, tile.tokens, e.value_dim);
    const Panel<A> grad_numerators = panel(m.grad_numerators.data, tile.tokens, e.value_dim);
    const Panel<const A> there = panel_in_place<const A>(table, tile, dy);
    const bool in_place = there.rows > 0;
    const Panel<const A> grad_outputs = in_place ? there : Panel<const A>(gathered);
    const TileGradient<A, sight_of<L>> at =
        tile_gradient(g, weights, tile, grad_outputs,
                      normalizes<L> ? Panel<const A>(grad_numerators) : grad_outputs);
    pack_features(features_of(of_.operands, of_.operands.scale(), table, tile),
                  query_rows(plan(), of_.unit, g, of_.operands.q),
                  FeaturePanels<A>{at.features, at.rotated}, m.row);
    if (!in_place) gather<T, A>(table, tile, dy, {}, gathered);
    Index seen = 0;  // ranges
    while (seen < of_.ranges.size && at.seen(of_.ranges[seen]) > 0) ++seen;
    const KeyPanels<A> keys = of_.key_panels(values_transposed());
    A* const sums = m.sums.data;
    A* const products = sums + m.sums.size / 2;
    loop.parallel_for(seen, [&](Index r, Index slot) {
      const KeyRange& range = of_.ranges[r];
      score_range<A>(at, range, panels(at, r), keys, plan().scratch[slot].quadratic.weights,
                     sums + r * e.tile_tokens, products + r * e.tile_tokens);
    });
    A epsilon = A(0);
    if constexpr (normalizes<L>) epsilon = static_cast<A>(of_.operands.variant.normalizer.epsilon);
    divide_tile<A>(at, grad_numerators, seen, epsilon, sums, products, e.tile_tokens);
    loop.parallel_for(seen, [&](Index r, Index slot) {
      gradients_of_range<A>(at, of_.ranges[r], panels(at, r), plan().scratch[slot].quadratic);
    });
    if (request_.query()) unpack_queries(g, tile, at, seen);
  }

  MHLA_ONCE_A_CALL TileGradient<A, sight_of<L>> tile_gradient(
      Index g, const Weights<A, sight_of<L>>& weights, const TokenTile& tile,
      const Panel<const A>& grad_outputs, const Panel<const A>& grad_numerators) const {
    const BackwardMemory<A>& m = memory();
    const Index features = extents().feature_dim;
    const Index count = normalizes<L> ? tile.tokens : 0;
    const Panel<A> rotated = panel(m.queries.data, tile.tokens, features);
    const bool overwrites = !is_causal<L> && g == 0 && tile.offset == 0;
    const Index matrix = extents().matrices == 1 ? 0 : g;
    return {weights,
            {tile.offset, tile.offset + tile.tokens},
            of_.unrotated_too() ? panel(m.unrotated_queries.data, tile.tokens, features) : rotated,
            rotated,
            grad_outputs,
            grad_numerators,
            {m.denominators.data, count},
            {m.inverses.data, count},
            {m.grad_denominators.data, count},
            of_.unrotated_too(),
            request_.gradients.value.wanted,
            request_.query(),
            request_.gradients.key.wanted,
            overwrites ? Into::overwrite : Into::add,
            request_.mixing() ? mixing_gradient(matrix) : Panel<A>{}};
  }

  Panel<A> mixing_gradient(Index matrix) const {
    return {of_.unit.memory.grad_mixing.row(matrix), of_.unit.queries.blocks, of_.unit.keys.blocks,
            plan().problem.key_blocks};
  }

  MHLA_ONCE_A_CALL RangePanels<A> panels(const TileGradient<A, sight_of<L>>& at, Index r) const {
    const BackwardMemory<A>& m = memory();
    const Extents& e = extents();
    const KeyRange& range = of_.ranges[r];
    const Index seen = at.seen(range);
    const auto columns = [&](Span<A> memory) {
      return key_columns(memory, e, at.rows(), of_.key_tokens).col_range(range.first, seen);
    };
    const auto rows = [&](Span<A> memory, Index cols) {
      return panel(memory.data + range.first * cols, range.tokens(), cols);
    };
    const Index queries = checked_mul(e.tile_tokens, e.feature_dim);
    const auto of_queries = [&](Index index) {
      return panel(m.grad_queries.data + index * queries, at.rows(), e.feature_dim);
    };
    RangePanels<A> in;
    in.scores = columns(m.scores);
    in.unrotated_scores = at.unrotated_too ? columns(m.unrotated_scores) : in.scores;
    in.products = columns(m.products);
    in.by_weight = {m.by_weight.data + range.first, range.tokens()};
    in.keys = rows(m.keys, e.feature_dim);
    in.grad_keys = rows(m.grad_keys, e.feature_dim);
    in.grad_values = rows(m.grad_values, e.value_dim);
    in.grad_queries = of_queries(r);
    if (!at.unrotated_too) return in;
    in.unrotated_keys = rows(m.unrotated_keys, e.feature_dim);
    in.grad_unrotated = rows(m.grad_unrotated, e.feature_dim);
    in.grad_unrotated_queries = of_queries(of_.memory.ranges.size + r);
    return in;
  }

  /// The sum of a tile's ranges, in their order.
  Panel<A> sum_of_ranges(const TileGradient<A, sight_of<L>>& at, Index first, Index ranges) const {
    const Extents& e = extents();
    const auto of = [&](Index r) {
      return panel(memory().grad_queries.data + (first + r) * e.tile_tokens * e.feature_dim,
                   at.rows(), e.feature_dim);
    };
    const Panel<A> sum = of(0);
    if (ranges == 0) set_zero(sum);
    for (Index r = 1; r < ranges; ++r) add_scaled(sum, A(1), of(r));
    return sum;
  }

  MHLA_ONCE_A_CALL void unpack_queries(Index g, const TokenTile& tile,
                                       const TileGradient<A, sight_of<L>>& at, Index ranges) const {
    const Operands<L, T>& operands = of_.operands;
    FeatureGradients<A> total{sum_of_ranges(at, 0, ranges)};
    if (at.unrotated_too)
      total.unrotated = sum_of_ranges(at, of_.memory.ranges.size, ranges).placed();
    unpack_feature_gradient(features_of(operands, operands.scale(), plan().tables.queries, tile),
                            query_rows(plan(), of_.unit, g, operands.q), total,
                            query_rows(plan(), of_.unit, g, request_.gradients.query.view),
                            request_.update, memory().row);
  }

  MHLA_ONCE_A_CALL void unpack_keys(const TokenTile& tile, const SlotScratch<A>& scratch) const {
    const Operands<L, T>& operands = of_.operands;
    const BlockTable& table = plan().tables.keys;
    const Extents& e = extents();
    const auto rows = [&](Span<A> memory, Index cols) {
      return panel(memory.data + tile.offset * cols, tile.tokens, cols);
    };
    if (request_.gradients.key.wanted) {
      FeatureGradients<A> total{rows(memory().grad_keys, e.feature_dim)};
      if (of_.unrotated_too())
        total.unrotated = rows(memory().grad_unrotated, e.feature_dim).placed();
      unpack_feature_gradient(
          features_of(operands, A(1), table, tile), key_rows(of_.unit, operands.k), total,
          key_rows(of_.unit, request_.gradients.key.view), request_.update, scratch.row);
    }
    if (request_.gradients.value.wanted)
      scatter<T, A>(table, tile, rows(memory().grad_values, e.value_dim), {},
                    key_rows(of_.unit, request_.gradients.value.view), request_.update);
  }

  QuadraticUnit<L, T> of_;
  const BackwardRequest<L, T>& request_;
};

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
