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

/// Query blocks, or key blocks in the adjoint, mixed at once: as many as leave the mixed summaries
/// in the L2 cache and still fill the product's registers.
inline constexpr Index max_mixing_rows = 32;

/// Columns of the summaries that a causal group takes at once: its rows stay in the L2 cache while
/// their triangle goes row by row.
inline constexpr Index max_mixing_columns = 2048;

/// mixed [rows, width] = mixing [rows, key blocks] summaries [key blocks, width]
template <class A>
void mix(const Panel<const A>& mixing, const Panel<const A>& summaries, const Panel<A>& mixed) {
  multiply(mixed, mixing, summaries);
}

/// The same for query blocks [first, first + rows) and key blocks b <= i - lag.
template <class A>
void mix_past(const Panel<const A>& mixing, Index first, Index lag, const Panel<const A>& summaries,
              const Panel<A>& mixed) {
  const Index seen_by_all = std::max(Index{0}, first - lag + 1);
  const Index rest = mixed.rows - 1;  // row 1 sees one block more than all do, row 2 two, and so on
  for (Index at = 0; at < mixed.cols; at += max_mixing_columns) {
    const Index cols = std::min(max_mixing_columns, mixed.cols - at);
    const Panel<A> to{mixed.data + at, mixed.rows, cols, mixed.stride};
    const Panel<const A> from{summaries.data + at, summaries.rows, cols, summaries.stride};
    multiply(to, {mixing.data, mixing.rows, seen_by_all, mixing.stride},
             from.row_range(0, seen_by_all));
    multiply_lower(to.row_range(1, rest), {mixing.row(1) + seen_by_all, rest, rest, mixing.stride},
                   from.row_range(seen_by_all, rest), Into::add);
  }
}

/// The adjoint in the summaries, for key blocks [first, first + grad.rows):
/// dS_b (+)= sum_i m_ib dS~_i                                                  // [rows, width]
template <class A>
void mix_summary_gradient(const Panel<const A>& mixing, Index first,
                          const Panel<const A>& grad_mixed, const Panel<A>& grad, Into into) {
  const Panel<const A> columns{mixing.data + first, mixing.rows, grad.rows, mixing.stride};
  multiply_left_transposed(grad, columns, grad_mixed, into);
}

/// The adjoint of `mix_past` in the summaries: dS_b (+)= sum over i >= b + lag of m_ib dS~_i.
template <class A>
void mix_past_summary_gradient(const Panel<const A>& mixing, Index first, Index lag,
                               const Panel<const A>& grad_mixed, const Panel<A>& grad, Into into) {
  const Index sees_all = std::min(mixing.rows, first + grad.rows - 1 + lag);
  const Index rest = mixing.rows - sees_all;
  const Index some = sees_all - first - lag;  // rows that see a part of the group
  for (Index at = 0; at < grad.cols; at += max_mixing_columns) {
    const Index cols = std::min(max_mixing_columns, grad.cols - at);
    const Panel<A> to{grad.data + at, grad.rows, cols, grad.stride};
    const Panel<const A> from{grad_mixed.data + at, grad_mixed.rows, cols, grad_mixed.stride};
    multiply_left_transposed(to, {mixing.row(sees_all) + first, rest, grad.rows, mixing.stride},
                             from.row_range(sees_all, rest), into);
    multiply_lower_transposed(to.row_range(0, some),
                              {mixing.row(first + lag) + first, some, some, mixing.stride},
                              from.row_range(first + lag, some), Into::add);
  }
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
  const Index seen_by_all = std::max(Index{0}, first - lag + 1);
  multiply_right_transposed(
      Panel<A>{grad_mixing.data, grad_mixing.rows, seen_by_all, grad_mixing.stride}, grad_mixed,
      summaries.row_range(0, seen_by_all), Into::add);
  for (Index top = 1; top < grad_mixed.rows; top += triangle_rows) {
    const Index rows = std::min(triangle_rows, grad_mixed.rows - top);
    multiply_right_transposed(
        Panel<A>{grad_mixing.row(top) + seen_by_all, rows, top - 1, grad_mixing.stride},
        grad_mixed.row_range(top, rows), summaries.row_range(seen_by_all, top - 1), Into::add);
    for (Index i = top; i < top + rows; ++i)
      for (Index b = seen_by_all + top - 1; b <= first + i - lag; ++b)
        grad_mixing.row(i)[b] +=
            inner_product(grad_mixed.row_range(i, 1), summaries.row_range(b, 1));
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
