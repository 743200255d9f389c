// SPDX-License-Identifier: MIT
// Mixing of block summaries (arXiv 2601.07832, eq. 4) for a group of rows of the mixing matrix, and
// its adjoints. Summaries lie one per row: S [key blocks, feature_dim * value_dim],
// z [key blocks, feature_dim].
//
//   S~_i = sum_b m_ib S_b       z~_i = sum_b m_ib z_b
//
// over all key blocks b, or over b <= i - lag: lag 1 for Causal (the own block goes token by
// token), 0 for BlockCausal. What lies outside is not multiplied by 0 but left out: a NaN stays
// there.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cpu/gemm.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Query blocks, or key blocks in the adjoint, mixed at once: all sums of a column of theirs are in
/// registers, so that summaries are read once for all of them.
inline constexpr Index max_mixing_rows = 14;

/// mixed [rows, width] = mixing [rows, key blocks] summaries [key blocks, width]. `scratch` has
/// room for the rows of mixing, here and below.
template <class A>
void mix(const Panel<const A>& mixing, const Panel<const A>& summaries, const Panel<A>& mixed,
         Span<A> scratch) {
  const PackedWeights<A> weights{scratch.data, mixing.rows, mixing.cols};
  transpose(panel(weights.data, weights.depth, weights.rows), mixing);
  mix_rows(mixed, weights, summaries, Terms::all, Into::overwrite);
}

/// The same for query blocks [first, first + rows) and key blocks b <= i - lag.
template <class A>
void mix_past(const Panel<const A>& mixing, Index first, Index lag, const Panel<const A>& summaries,
              const Panel<A>& mixed, Span<A> scratch) {
  const Index seen = first + mixing.rows - lag;  // by the last row
  const PackedWeights<A> weights{scratch.data, mixing.rows, seen};
  transpose(panel(weights.data, weights.depth, weights.rows),
            Panel<const A>{mixing.data, mixing.rows, seen, mixing.stride});
  mix_rows(mixed, weights, summaries, Terms::past, Into::overwrite);
}

/// The adjoint in the summaries, for key blocks [first, first + grad.rows):
/// dS_b (+)= sum_i m_ib dS~_i                                                  // [rows, width]
template <class A>
void mix_summary_gradient(const Panel<const A>& mixing, Index first,
                          const Panel<const A>& grad_mixed, const Panel<A>& grad, Into into,
                          Span<A> scratch) {
  const PackedWeights<A> weights{scratch.data, grad.rows, mixing.rows};
  for (Index i = 0; i < mixing.rows; ++i)
    copy_row(weights.data + i * weights.rows, mixing.row(i) + first, weights.rows);
  mix_rows(grad, weights, grad_mixed, Terms::all, into);
}

/// The adjoint of `mix_past` in the summaries: dS_b (+)= sum over i >= b + lag of m_ib dS~_i. From
/// the last block backwards it is mix_past again: the earlier b, the more i.
template <class A>
void mix_past_summary_gradient(const Panel<const A>& mixing, Index first, Index lag,
                               const Panel<const A>& grad_mixed, const Panel<A>& grad, Into into,
                               Span<A> scratch) {
  const Index last_row = mixing.rows - 1;
  const Index last = grad.rows - 1;
  const PackedWeights<A> weights{scratch.data, grad.rows, mixing.rows - first - lag};
  for (Index k = 0; k < weights.depth; ++k)
    for (Index r = 0; r < weights.rows; ++r)
      weights.data[k * weights.rows + r] = mixing.row(last_row - k)[first + last - r];
  const auto backwards = [](const auto& panel, Index from) {
    auto mirrored = panel;
    mirrored.data = panel.row(from);
    mirrored.stride = -panel.stride;
    return mirrored;
  };
  mix_rows(backwards(grad, last), weights, backwards(grad_mixed, last_row), Terms::past, into);
}

/// The adjoint in the mixing matrix: dm_ib += <dS~_i, S_b>, for the rows given. Called for S and
/// for z, it adds both terms.                                             // [rows, key blocks]
template <class A>
void mix_matrix_gradient(const Panel<const A>& grad_mixed, const Panel<const A>& summaries,
                         const Panel<A>& grad_mixing) {
  multiply_right_transposed(grad_mixing, grad_mixed, summaries, Into::add);
}

/// The same for query blocks [first, first + rows) and key blocks b <= i - lag.
template <class A>
void mix_past_matrix_gradient(const Panel<const A>& grad_mixed, Index first, Index lag,
                              const Panel<const A>& summaries, const Panel<A>& grad_mixing) {
  // Products with blocks that a row does not see cost less than to leave them out; they are not
  // added.
  A products[max_mixing_rows * max_mixing_rows];
  const Index rows = grad_mixed.rows;
  const Index seen_by_all = std::max(Index{0}, first - lag + 1);
  const Index rest = first + rows - lag - seen_by_all;
  multiply_right_transposed(Panel<A>{grad_mixing.data, rows, seen_by_all, grad_mixing.stride},
                            grad_mixed, summaries.row_range(0, seen_by_all), Into::add);
  multiply_right_transposed(panel(products, rows, rest), grad_mixed,
                            summaries.row_range(seen_by_all, rest));
  for (Index i = 0; i < rows; ++i)
    for (Index b = seen_by_all; b <= first + i - lag; ++b)
      grad_mixing.row(i)[b] += products[i * rest + b - seen_by_all];
}

}  // namespace cpu

MHLA_NAMESPACE_END
