// SPDX-License-Identifier: MIT
// The adjoint of scores.hpp. With U = dy / den, G_xy = <dy_x, v_y> and
// c_x = -<w_x, P_x o G_x> / den_x^2, the gradient of den_x (0 where den is 0), and t = G / den:
//
//   dQ^r = (w o t) K^r      dK^r = (w o t)^T Q^r      dQ += (c w) K    dK += (c w)^T Q
//   dV   = (w o P)^T U      dm_ib = sum over x of i, y of b of P_xy t_xy + c_x E_xy
//
// Without a rotation t = G / den + c takes in what the denominators send back.
#pragma once

#include <mhla/cpu/quadratic/scores.hpp>
#include <mhla/cpu/readout.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::quadratic {

/// A tile of queries of one head, in its unit's memory.
template <class A, Sight S>
struct TileGradient {
  const Weights<A, S>& weights;
  const TokenTile& tile;
  Span<const KeyRange> ranges;
  const Memory<A>& memory;
  Panel<const A> grad_outputs;     // [tile tokens, value_dim]: dy
  Panel<const A> grad_numerators;  // the same: U
  bool normalizes;
  bool queries_wanted;
  bool keys_wanted;
  bool values_wanted;
  Into into;             // what keys get: the first tile overwrites it
  Panel<A> grad_mixing;  // [query blocks, key blocks]; no rows if dmix is not wanted

  bool unrotated_too() const { return memory.unrotated.keys.rows > 0; }
  ScoreTile<A, S> with(Index r) const { return {weights, tile, ranges[r]}; }
  /// Panels with range r: of P, and of E, which without a rotation is P; and G.
  FeatureMemory<A> of(const FeatureMemory<A>& features, Index r) const {
    return features.of(ranges[r], r, tile.tokens, with(r).seen());
  }
  FeatureMemory<A> unrotated(Index r) const {
    return of(unrotated_too() ? memory.unrotated : memory.rotated, r);
  }
  Panel<A> products(Index r) const {
    return memory.products.row_range(0, tile.tokens).col_range(ranges[r].first, with(r).seen());
  }

  // In this order: of every range, of the tile, and of every range again. `buffer` is for weights.
  void score(Index r, Span<A> buffer) const;
  void divide(Index num_ranges, A epsilon) const;
  void add_gradients(Index r, const Scratch<A>& scratch) const;

 private:
  void weigh(Index r, Span<A> buffer) const;
  A* sums(Index r) const { return memory.sums.row(r); }                          // of den
  A* sums_of_products(Index r) const { return sums(memory.sums.rows / 2 + r); }  // of den^2 c
};

/// This machine's kernels.
template <class A>
MHLA_OUT_OF_LINE const ScoreGradientKernels<A>& score_gradient_kernels() {
  const ScoreGradientKernels<A>* found = nullptr;
  with_kernels<A>([&](auto kernels) { found = &kernels.score_gradient_kernels; });
  return *found;
}

/// P, G and E of a range, and the sums of its rows: of den, and of den c.
template <class A, Sight S>
MHLA_ONCE_A_CALL void TileGradient<A, S>::score(Index r, Span<A> buffer) const {
  const auto multiply_keys = [](const FeatureMemory<A>& in) {
    multiply<A>(in.scores, in.queries, in.transposed);
  };
  const Panel<A> p = of(memory.rotated, r).scores;
  const Panel<A> e = unrotated(r).scores;
  const Panel<A> g = products(r);
  multiply_keys(of(memory.rotated, r));
  if (unrotated_too()) multiply_keys(of(memory.unrotated, r));
  multiply<A>(g, grad_outputs, memory.values.col_range(ranges[r].first, g.cols));
  if (!normalizes) return;
  const ScoreGradientKernels<A>& kernels = score_gradient_kernels<A>();
  with(r).for_each_row(buffer, [&](Index row, Index keys, const A* w) {
    sums(r)[row] = kernels.weighted_sums(keys, w, e.row(row), p.row(row), g.row(row),
                                         sums_of_products(r) + row);
  });
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
MHLA_OUT_OF_LINE void TileGradient<A, S>::weigh(Index r, Span<A> buffer) const {
  const KeyRange& range = ranges[r];
  const Panel<A> p = of(memory.rotated, r).scores;
  const Panel<A> e = unrotated(r).scores;
  const Panel<A> g = products(r);
  const bool mixing = grad_mixing.rows > 0;
  const ScoreGradientKernels<A>& kernels = score_gradient_kernels<A>();
  weights.for_each_block(tile, [&](Index i, Index first, Index end) {
    const Index most = weights.seen(end - 1, i, range);
    if (most == 0) return;
    const A* const w = weights.of(i, range, buffer.data);
    // With a token a block dmix's own row.
    A* by_weight = nullptr;
    if (mixing && range.single_tokens) by_weight = grad_mixing.row(i) + range.first_block;
    if (mixing && !range.single_tokens) {
      by_weight = memory.by_weight.data + range.first;
      std::fill_n(by_weight, most, A(0));
    }
    for (Index x = first; x < end; ++x) {
      const Index row = x - tile.offset;
      const Index seen = weights.seen(x, i, range);
      const A c = normalizes ? memory.grad_denominators[row] : A(0);
      kernels.score_gradients(seen, w, normalizes ? memory.inverses[row] : A(1),
                              unrotated_too() ? A(0) : c, p.row(row), g.row(row), by_weight);
      if (!unrotated_too()) continue;
      if (mixing) kernels.add_scaled(seen, c, e.row(row), by_weight);
      std::fill_n(e.row(row), seen, A(0));
      kernels.add_scaled(seen, c, w, e.row(row));
    }
    if (mixing && !range.single_tokens)
      add_block_sums(weights, range, most, by_weight, grad_mixing.row(i));
  });
}

/// What a range contributes to all gradients, from P, G and E.
template <class A, Sight S>
MHLA_ONCE_A_CALL void TileGradient<A, S>::add_gradients(Index r, const Scratch<A>& scratch) const {
  const ScoreTile<A, S> pairs = with(r);
  weigh(r, scratch.weights);
  const auto add_features = [&](const FeatureMemory<A>& in, const Panel<A>& scores) {
    if (queries_wanted)
      pairs.template multiply_seen<false>(in.grad_queries, scores,
                                          in.keys.row_range(0, scores.cols), Into::overwrite,
                                          scratch.square);
    if (keys_wanted) pairs.template multiply_seen<true>(in.grad_keys, scores, in.queries, into);
  };
  add_features(of(memory.rotated, r), products(r));
  if (unrotated_too()) add_features(unrotated(r), unrotated(r).scores);
  if (values_wanted)
    pairs.template multiply_seen<true>(
        memory.grad_values.row_range(ranges[r].first, ranges[r].tokens()),
        of(memory.rotated, r).scores, grad_numerators, into);
}

/// den, 1 / den, c and U of a tile, from the sums of its ranges.
template <class A, Sight S>
MHLA_OUT_OF_LINE void TileGradient<A, S>::divide(Index num_ranges, A epsilon) const {
  if (!normalizes) return;
  const Span<A> den{memory.denominators.data, tile.tokens};
  const Span<A> inverses{memory.inverses.data, tile.tokens};
  const Span<A> c = memory.grad_denominators;
  for (Index t = 0; t < tile.tokens; ++t) {
    den[t] = c[t] = A(0);
    for (Index r = 0; r < num_ranges; ++r) {
      den[t] += sums(r)[t];
      c[t] -= sums_of_products(r)[t];
    }
    den[t] += epsilon;
  }
  const bool invertible = invert<A>(den, inverses);
  for (Index t = 0; t < tile.tokens; ++t) {  // with the same bits whatever other rows have
    const bool zero = den[t] == A(0);
    if (!invertible) inverses[t] = zero ? A(0) : quotient(A(1), den[t]);
    if (invertible || zero || (std::abs)(den[t]) > A(1) / (std::numeric_limits<A>::max)())
      c[t] *= inverses[t] * inverses[t];
    else
      c[t] = quotient(quotient(c[t], den[t]), den[t]);
    if (zero) c[t] = A(0);
  }
  const Panel<A> u = memory.grad_numerators.row_range(0, tile.tokens);
  if (invertible) return weighted_rows<A, A>(u, inverses, grad_outputs.placed());
  for (Index t = 0; t < tile.tokens; ++t) copy_row(u.row(t), grad_outputs.row(t), u.cols);
  divide_rows<A>(u, den);
}

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
