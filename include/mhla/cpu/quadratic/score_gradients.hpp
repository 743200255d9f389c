// SPDX-License-Identifier: MIT
// The adjoint of scores.hpp. With U = dy / den, G_xy = <dy_x, v_y> and
// c_x = -<w_x, P_x o G_x> / den_x^2, the gradient of den_x (0 where den is 0), and t = G / den:
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
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/cpu/quadratic/scores.hpp>
#include <mhla/cpu/readout.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::quadratic {

/// A tile of queries of one head with a range of keys: panels of its unit's memory.
template <class A, Sight S>
struct TileGradient {
  const Weights<A, S>& weights;
  QueryRange tile;
  Panel<A> features;               // [tile tokens, feature_dim]: Q
  Panel<A> rotated;                // Q^r
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

/// This machine's kernels.
template <class A>
MHLA_OUT_OF_LINE const ScoreGradientKernels<A>& score_gradient_kernels() {
  const ScoreGradientKernels<A>* found = nullptr;
  with_kernels<A>([&](auto kernels) { found = &kernels.score_gradient_kernels; });
  return *found;
}

/// <w_x, E_x> and <w_x, P_x o G_x> of the rows x of a tile.
template <class A, Sight S>
MHLA_OUT_OF_LINE void weighted_sums(const Weights<A, S>& weights, const QueryRange& tile,
                                    const KeyRange& range, const Panel<const A>& unrotated,
                                    const Panel<const A>& scores, const Panel<const A>& products,
                                    Span<A> buffer, A* sums, A* sums_of_products) {
  const ScoreGradientKernels<A>& kernels = score_gradient_kernels<A>();
  weights.for_each_block(tile, [&](Index i, Index first, Index end) {
    const A* const w = weights.of(i, range, buffer.data);
    for (Index x = first; x < end; ++x) {
      const Index row = x - tile.first;
      sums[row] = kernels.weighted_sums(weights.seen(x, i, range), w, unrotated.row(row),
                                        scores.row(row), products.row(row), sums_of_products + row);
    }
  });
}

/// P, G and E of a range, and the sums of its rows: of den, and of den c.
template <class A, Sight S>
MHLA_ONCE_A_CALL void score_range(const TileGradient<A, S>& at, const KeyRange& range,
                                  const RangePanels<A>& in, const KeyPanels<A>& keys,
                                  Span<A> weights, A* sums, A* sums_of_products) {
  const Index seen = in.scores.cols;
  const auto columns = [&](const Panel<const A>& of) { return of.col_range(range.first, seen); };
  multiply<A>(in.scores, at.rotated, columns(keys.transposed));
  if (at.unrotated_too)
    multiply<A>(in.unrotated_scores, at.features, columns(keys.unrotated_transposed));
  multiply<A>(in.products, at.grad_outputs, columns(keys.values));
  if (at.denominators.size > 0)
    weighted_sums<A>(at.weights, at.tile, range, in.unrotated_scores, in.scores, in.products,
                     weights, sums, sums_of_products);
}

/// Adds the sum over each key block of `tokens` tokens of a range to its element of a row of dmix.
template <class A, Sight S>
void add_block_sums(const Weights<A, S>& weights, const KeyRange& range, Index tokens,
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
template <class A, Sight S>
MHLA_OUT_OF_LINE void score_gradients(const TileGradient<A, S>& at, const KeyRange& range,
                                      const RangePanels<A>& in, Span<A> buffer) {
  const Weights<A, S>& weights = at.weights;
  const bool mixing = at.grad_mixing.rows > 0;
  const ScoreGradientKernels<A>& kernels = score_gradient_kernels<A>();
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
                              at.unrotated_too ? A(0) : c, in.scores.row(row), in.products.row(row),
                              by_weight);
      if (!at.unrotated_too) continue;
      A* const e = in.unrotated_scores.row(row);
      if (mixing) kernels.add_scaled(seen, c, e, by_weight);
      std::fill_n(e, seen, A(0));
      kernels.add_scaled(seen, c, w, e);
    }
    if (mixing && !range.single_tokens)
      add_block_sums(weights, range, most, by_weight, at.grad_mixing.row(i));
  });
}

/// What a range contributes to all gradients, from P, G and E.
template <class A, Sight S>
MHLA_ONCE_A_CALL void gradients_of_range(const TileGradient<A, S>& at, const KeyRange& range,
                                         const RangePanels<A>& in, const Scratch<A>& scratch) {
  const Weights<A, S>& weights = at.weights;
  const QueryRange& tile = at.tile;
  score_gradients(at, range, in, scratch.weights);
  const auto features = [&](const Panel<A>& scores, const Panel<A>& queries, const Panel<A>& keys,
                            const Panel<A>& grad_queries, const Panel<A>& grad_keys) {
    if (at.queries_wanted)
      multiply_keys<A>(weights, tile, range, scores, keys.row_range(0, scores.cols), grad_queries,
                       Into::overwrite, scratch.square);
    if (at.keys_wanted) multiply_rows<A>(weights, tile, range, scores, queries, grad_keys, at.into);
  };
  features(in.products, at.rotated, in.keys, in.grad_queries, in.grad_keys);
  if (at.unrotated_too)
    features(in.unrotated_scores, at.features, in.unrotated_keys, in.grad_unrotated_queries,
             in.grad_unrotated);
  if (at.values_wanted)
    multiply_rows<A>(weights, tile, range, in.scores, at.grad_numerators, in.grad_values, at.into);
}

/// den, 1 / den, c and U of a tile, from the sums of its ranges.
template <class A, Sight S>
MHLA_OUT_OF_LINE void divide_tile(const TileGradient<A, S>& at, const Panel<A>& grad_numerators,
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
    const bool invertible = (std::abs)(den[t]) > A(1) / (std::numeric_limits<A>::max)();
    at.inverses[t] = zero ? A(0) : quotient(A(1), den[t]);
    if (zero || invertible)
      c[t] *= at.inverses[t] * at.inverses[t];
    else
      c[t] = quotient(quotient(c[t], den[t]), den[t]);
    if (zero) c[t] = A(0);
  }
  for (Index t = 0; t < rows; ++t)
    copy_row(grad_numerators.row(t), at.grad_outputs.row(t), grad_numerators.cols);
  divide_rows<A>(grad_numerators, den);
}

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
