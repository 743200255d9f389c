// SPDX-License-Identifier: MIT
// The backward pass of one unit by the scores of all pairs, the adjoint of forward.hpp. With
// U = dy / den, G_xy = <dy_x, v_y> and c_x = -<w_x, P_x o G_x> / den_x^2, the gradient of den_x
// (0 where den is 0), and t = G / den:
//
//   dQ^r = (w o t) K^r      dK^r = (w o t)^T Q^r      dQ += (c w) K    dK += (c w)^T Q
//   dV   = (w o P)^T U      dm_ib = sum over x of i, y of b of P_xy t_xy + c_x E_xy
//
// Without a rotation t = G / den + c takes in what the denominators send back.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/backward_unit.hpp>
#include <mhla/cpu/quadratic/keys.hpp>
#include <mhla/cpu/quadratic/scores.hpp>
#include <mhla/cpu/readout.hpp>
#include <mhla/cpu/tiles.hpp>
#include <mhla/cpu/unit.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::quadratic {

/// A tile of queries of one head with a range of keys: panels of its unit's memory.
template <class A>
struct TileGradient {
  const Weights<A>& weights;
  QueryRange tile;
  FeaturePanels<A> q;              // [tile tokens, feature_dim]
  Panel<const A> grad_outputs;     // [tile tokens, value_dim]: dy
  Panel<const A> grad_numerators;  // the same: U
  Span<A> denominators;            // [tile tokens]; empty without a normalizer
  Span<A> inverses;                // 1 / den, 0 where den is 0
  Span<A> grad_denominators;       // c
  bool unrotated_too;
  bool values_wanted;
  bool queries_wanted;
  bool keys_wanted;
  Into into;             // what keys get: the first tile overwrites it
  Panel<A> grad_mixing;  // [query blocks, key blocks]; no rows if dmix is not wanted

  Index rows() const { return tile.end - tile.first; }
  /// How many keys of a range the last row sees, and so any.
  Index seen(const KeyRange& range) const {
    return weights.seen(tile.end - 1, weights.block_of(tile.end - 1), range);
  }
};

/// Panels of a range in the memory of a unit.
template <class A>
struct RangePanels {
  Panel<A> scores;                                // [tile tokens, seen]: P
  Panel<A> unrotated_scores;                      // E; P itself without a rotation
  Panel<A> products;                              // G
  Span<A> by_weight;                              // [range tokens]
  Panel<A> keys, unrotated_keys;                  // [range tokens, feature_dim]
  Panel<A> grad_keys, grad_unrotated;             // the same
  Panel<A> grad_values;                           // [range tokens, value_dim]
  Panel<A> grad_queries, grad_unrotated_queries;  // [tile tokens, feature_dim], of this range alone
};

/// P, G and E of a range, and the sums of its rows: of den, and of den c.
template <class A>
MHLA_OUT_OF_LINE void score_range(const TileGradient<A>& at, const KeyRange& range,
                                  const RangePanels<A>& in, const Panel<const A>& keys_transposed,
                                  const Panel<const A>& unrotated_transposed,
                                  const Panel<const A>& values_transposed, Span<A> weights, A* sums,
                                  A* sums_of_products) {
  const Index seen = in.scores.cols;
  const auto columns = [&](const Panel<const A>& of) { return of.col_range(range.first, seen); };
  multiply<A>(in.scores, at.q.rotated, columns(keys_transposed));
  if (at.unrotated_too)
    multiply<A>(in.unrotated_scores, at.q.features, columns(unrotated_transposed));
  multiply<A>(in.products, at.grad_outputs, columns(values_transposed));
  if (at.denominators.size > 0)
    weighted_sums<A>(at.weights, at.tile, range, in.unrotated_scores, in.scores, in.products,
                     weights, sums, sums_of_products);
}

/// Adds the sum over each key block of `tokens` tokens of a range to its element of a row of dmix.
template <class A>
void add_block_sums(const Weights<A>& weights, const KeyRange& range, Index tokens,
                    const A* by_token, A* grad_mixing) {
  for (Index b = range.first_block; b < range.end_block; ++b) {
    const BlockSpan& block = weights.keys[b];
    const Index first = block.first_token - range.first;
    const Index end = (std::min)(first + block.tokens, tokens);
    A sum = A(0);
    for (Index y = first; y < end; ++y) sum += by_token[y];
    grad_mixing[b] += sum;
  }
}

/// t, w o t and w o P of a range, in place of G and P, and of E c w; adds to dmix.
template <class A>
MHLA_OUT_OF_LINE void score_gradients(const TileGradient<A>& at, const KeyRange& range,
                                      const RangePanels<A>& in, Span<A> buffer) {
  const Weights<A>& weights = at.weights;
  const bool mixing = at.grad_mixing.rows > 0;
  with_kernels<A>([&](auto kernels) {
    weights.for_each_block(at.tile, [&](Index i, Index first, Index end) {
      const Index most = weights.seen(end - 1, i, range);
      if (most == 0) return;
      const A* const w = weights.of(i, range, buffer.data);
      // With a token a block dmix's own row.
      A* by_weight = nullptr;
      if (mixing && range.single_tokens) by_weight = at.grad_mixing.row(i) + range.first_block;
      if (mixing && !range.single_tokens) {
        by_weight = in.by_weight.data;
        std::fill_n(by_weight, most, A(0));
      }
      for (Index x = first; x < end; ++x) {
        const Index row = x - at.tile.first;
        const Index seen = weights.seen(x, i, range);
        const A c = at.grad_denominators.size > 0 ? at.grad_denominators[row] : A(0);
        kernels.score_gradients(seen, w, at.inverses.size > 0 ? at.inverses[row] : A(1),
                                at.unrotated_too ? A(0) : c, in.scores.row(row),
                                in.products.row(row), by_weight);
        if (!at.unrotated_too) continue;
        A* const e = in.unrotated_scores.row(row);
        if (mixing) kernels.add_scaled(seen, c, e, by_weight);
        std::fill_n(e, seen, A(0));
        kernels.add_scaled(seen, c, w, e);
      }
      if (mixing && !range.single_tokens)
        add_block_sums(weights, range, most, by_weight, at.grad_mixing.row(i));
    });
  });
}

/// What a range contributes to all gradients, from P, G and E.
template <class A>
MHLA_OUT_OF_LINE void gradients_of_range(const TileGradient<A>& at, const KeyRange& range,
                                         const RangePanels<A>& in, const Scratch<A>& scratch) {
  const Weights<A>& weights = at.weights;
  const QueryRange& tile = at.tile;
  score_gradients(at, range, in, scratch.weights);
  const auto features = [&](const Panel<A>& scores, const Panel<A>& queries, const Panel<A>& keys,
                            const Panel<A>& grad_queries, const Panel<A>& grad_keys) {
    if (at.queries_wanted)
      multiply_keys<A>(weights, tile, range, scores, keys.row_range(0, scores.cols), grad_queries,
                       Into::overwrite, scratch.square);
    if (at.keys_wanted) multiply_rows<A>(weights, tile, range, scores, queries, grad_keys, at.into);
  };
  features(in.products, at.q.rotated, in.keys, in.grad_queries, in.grad_keys);
  if (at.unrotated_too)
    features(in.unrotated_scores, at.q.features, in.unrotated_keys, in.grad_unrotated_queries,
             in.grad_unrotated);
  if (at.values_wanted)
    multiply_rows<A>(weights, tile, range, in.scores, at.grad_numerators, in.grad_values, at.into);
}

/// den, 1 / den, c and U of a tile, from the sums of its ranges.
template <class A>
MHLA_OUT_OF_LINE void divide_tile(const TileGradient<A>& at, const Panel<A>& grad_numerators,
                                  Index ranges, A epsilon, const A* sums, const A* sums_of_products,
                                  Index stride) {
  const Index rows = at.denominators.size;
  if (rows == 0) return;
  const Span<A>& den = at.denominators;
  const Span<A>& c = at.grad_denominators;
  for (Index t = 0; t < rows; ++t) {
    den[t] = c[t] = A(0);
    for (Index r = 0; r < ranges; ++r) {
      den[t] += sums[r * stride + t];
      c[t] -= sums_of_products[r * stride + t];
    }
    den[t] += epsilon;
  }
  if (invert<A>(den, at.inverses)) {
    for (Index t = 0; t < rows; ++t) c[t] *= at.inverses[t] * at.inverses[t];
    return weighted_rows<A, A>(grad_numerators, at.inverses, at.grad_outputs.placed());
  }
  // Row by row as above, whatever other rows have.
  for (Index t = 0; t < rows; ++t) {
    const bool zero = den[t] == A(0);
    const bool small = !((std::abs)(den[t]) > A(1) / (std::numeric_limits<A>::max)());
    at.inverses[t] = zero ? A(0) : quotient(A(1), den[t]);
    if (zero || !small)
      c[t] *= at.inverses[t] * at.inverses[t];
    else
      c[t] = quotient(quotient(c[t], den[t]), den[t]);
    if (zero) c[t] = A(0);
  }
  for (Index t = 0; t < rows; ++t)
    copy_row(grad_numerators.row(t), at.grad_outputs.row(t), grad_numerators.cols);
  divide_rows<A>(grad_numerators, den);
}

/// A unit's backward pass: tile by tile of its queries, whose ranges of keys slots share.
template <class L, class T>
class BackwardUnit {
 public:
  using A = Accumulator<T>;

  BackwardUnit(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
               const Unit<A>& unit)
      : of_(operands, unit), request_(request) {}

  void run(const ExecutorRef& loop) const {
    of_.pack_keys(loop);
    if (sees_past_only<L> || extents().group_size * of_.query_tiles.size == 0)
      for (const Span<A>& sums :
           {memory().grad_keys, memory().grad_unrotated, memory().grad_values})
        std::fill_n(sums.data, sums.size, A(0));
    for (Index g = 0; g < extents().group_size; ++g) {
      const Weights<A> weights = of_.weights(g);
      for (const TokenTile& tile : of_.query_tiles) run_tile(g, weights, tile, loop);
    }
    loop.parallel_for(of_.key_tiles.size, [&](Index tile, Index slot) {
      unpack_keys(of_.key_tiles[tile], plan().scratch[slot]);
    });
  }

 private:
  const Plan<L, A>& plan() const { return of_.operands.plan; }
  const Extents& extents() const { return plan().extents; }
  const Memory<A>& memory() const { return of_.memory; }

  void run_tile(Index g, const Weights<A>& weights, const TokenTile& tile,
                const ExecutorRef& loop) const {
    const Memory<A>& m = memory();
    const Extents& e = extents();
    const Index count = normalizes<L> ? tile.tokens : 0;
    const Index matrix = e.matrices == 1 ? 0 : g;
    const bool values_wanted = request_.gradients.value.wanted;
    const bool keys_wanted = request_.gradients.key.wanted;
    const bool first = !sees_past_only<L> && g == 0 && tile.offset == 0;
    const Panel<A> rotated = panel(m.queries.data, tile.tokens, e.feature_dim);
    const BlockTable& table = plan().tables.queries;
    const TokenRows<const T> dy = query_rows(plan(), of_.unit, g, request_.dy);
    const Panel<A> gathered = panel(m.grad_outputs.data, tile.tokens, e.value_dim);
    Panel<const A> grad_outputs = panel_in_place<const A>(table, tile, dy);
    const bool in_place = grad_outputs.rows > 0;
    if (!in_place) grad_outputs = gathered;
    const Panel<A> grad_numerators = panel(m.grad_numerators.data, tile.tokens, e.value_dim);
    const TileGradient<A> at{
        weights,
        {tile.offset, tile.offset + tile.tokens},
        {of_.unrotated_too() ? panel(m.unrotated_queries.data, tile.tokens, e.feature_dim)
                             : rotated,
         rotated},
        grad_outputs,
        normalizes<L> ? Panel<const A>(grad_numerators) : grad_outputs,
        {m.denominators.data, count},
        {m.inverses.data, count},
        {m.grad_denominators.data, count},
        of_.unrotated_too(),
        values_wanted,
        request_.query(),
        keys_wanted,
        first ? Into::overwrite : Into::add,
        request_.mixing() ? mixing_gradient(matrix) : Panel<A>{}};
    loop.parallel_for(1, [&](Index, Index slot) {
      const SlotScratch<A>& scratch = plan().scratch[slot];
      pack_features(features_of(of_.operands, of_.operands.scale(), table, tile),
                    query_rows(plan(), of_.unit, g, of_.operands.q), at.q, scratch.row);
      if (!in_place) gather<T, A>(table, tile, dy, {}, gathered);
    });
    Index seen = 0;  // ranges
    while (seen < of_.ranges.size && at.seen(of_.ranges[seen]) > 0) ++seen;
    A* const sums = m.sums.data;
    A* const products = sums + m.sums.size / 2;
    loop.parallel_for(seen, [&](Index r, Index slot) {
      const KeyRange& range = of_.ranges[r];
      score_range<A>(at, range, panels(at, r), of_.keys_transposed(), of_.unrotated_transposed(),
                     of_.values_transposed(), plan().scratch[slot].quadratic.weights,
                     sums + r * e.tile_tokens, products + r * e.tile_tokens);
    });
    A epsilon = A(0);
    if constexpr (normalizes<L>) epsilon = static_cast<A>(of_.operands.variant.normalizer.epsilon);
    loop.parallel_for(1, [&](Index, Index) {
      divide_tile<A>(at, grad_numerators, seen, epsilon, sums, products, e.tile_tokens);
    });
    loop.parallel_for(seen, [&](Index r, Index slot) {
      gradients_of_range<A>(at, of_.ranges[r], panels(at, r), plan().scratch[slot].quadratic);
    });
    if (request_.query())
      loop.parallel_for(
          1, [&](Index, Index slot) { unpack_queries(g, tile, at, seen, plan().scratch[slot]); });
  }

  Panel<A> mixing_gradient(Index matrix) const {
    return {of_.unit.memory.grad_mixing.row(matrix), of_.unit.queries.blocks, of_.unit.keys.blocks,
            plan().problem.key_blocks};
  }

  RangePanels<A> panels(const TileGradient<A>& at, Index r) const {
    const Memory<A>& m = memory();
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
    in.grad_unrotated_queries = of_queries(m.ranges.size + r);
    return in;
  }

  /// The sum of a tile's ranges, in their order.
  Panel<A> sum_of_ranges(const TileGradient<A>& at, Index first, Index ranges) const {
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

  void unpack_queries(Index g, const TokenTile& tile, const TileGradient<A>& at, Index ranges,
                      const SlotScratch<A>& scratch) const {
    const Operands<L, T>& operands = of_.operands;
    FeatureGradients<A> total{sum_of_ranges(at, 0, ranges)};
    if (at.unrotated_too)
      total.unrotated = sum_of_ranges(at, memory().ranges.size, ranges).placed();
    unpack_feature_gradient(features_of(operands, operands.scale(), plan().tables.queries, tile),
                            query_rows(plan(), of_.unit, g, operands.q), total,
                            query_rows(plan(), of_.unit, g, request_.gradients.query.view),
                            request_.update, scratch.row);
  }

  void unpack_keys(const TokenTile& tile, const SlotScratch<A>& scratch) const {
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
