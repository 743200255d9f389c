// SPDX-License-Identifier: MIT
// Mixing of block summaries (arXiv 2601.07832, eq. 4) for a group of rows of the mixing matrix, and
// its adjoints. Summaries lie one per row: S [key blocks, feature_dim * value_dim],
// z [key blocks, feature_dim].
//
//   S~_i = sum_b m_ib S_b       z~_i = sum_b m_ib z_b
//
// over all key blocks b, or over b <= i - lag: lag 1 for Causal (a query's own block is handled
// token by token), 0 for BlockCausal. What lies outside is skipped, not multiplied by 0, so that a
// NaN there does not spread.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cpu/gemm.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// mixed [rows, width] = mixing [rows, key blocks] summaries [key blocks, width].
template <class A>
void mix(const Panel<const A>& mixing, const Panel<const A>& summaries, const Panel<A>& mixed) {
  mix_rows(mixed, mixing, false, summaries, Into::overwrite, Terms::all);
}

/// The same for query blocks [first, first + rows) and key blocks b <= i - lag.
template <class A>
void mix_past(const Panel<const A>& mixing, Index first, Index lag, const Panel<const A>& summaries,
              const Panel<A>& mixed) {
  const Index seen = first + mixing.rows - lag;  // by the last row
  mix_rows(mixed, mixing.col_range(0, seen), false, summaries, Into::overwrite, Terms::past);
}

/// The adjoint in the summaries, for key blocks [first, first + grad.rows):
/// dS_b (+)= sum_i m_ib dS~_i                                                  // [rows, width]
template <class A>
void mix_summary_gradient(const Panel<const A>& mixing, Index first,
                          const Panel<const A>& grad_mixed, const Panel<A>& grad, Into into) {
  mix_rows(grad, mixing.col_range(first, grad.rows), true, grad_mixed, into, Terms::all);
}

/// The adjoint of `mix_past` in the summaries: dS_b (+)= sum over i >= b + lag of m_ib dS~_i.
template <class A>
void mix_past_summary_gradient(const Panel<const A>& mixing, Index first, Index lag,
                               const Panel<const A>& grad_mixed, const Panel<A>& grad, Into into) {
  const Index seen = mixing.rows - first - lag;  // of query blocks that see the first key block
  mix_rows(grad, mixing.row_range(first + lag, seen).col_range(first, grad.rows), true,
           grad_mixed.row_range(first + lag, seen), into, Terms::future);
}

/// The adjoint in the mixing matrix: dm_ib += <dS~_i, S_b>, for the blocks given. Called for S and
/// for z, it adds both terms.                                         // [query blocks, key blocks]
template <class A>
void mix_matrix_gradient(const Panel<const A>& grad_mixed, const Panel<const A>& summaries,
                         const Panel<A>& grad_mixing) {
  multiply_right_transposed(grad_mixing, grad_mixed, summaries, Into::add);
}

/// The same for all query blocks and key blocks [first, first + summaries.rows), where b <= i -
/// lag. `scratch` has room for a product of two key blocks each.
template <class A>
void mix_past_matrix_gradient(const Panel<const A>& grad_mixed, Index first, Index lag,
                              const Panel<const A>& summaries, const Panel<A>& grad_mixing,
                              Span<A> scratch) {
  // Query blocks from `some` on see the first of the key blocks, from `all` on the last. Computing
  // products with blocks that a row does not see is cheaper than skipping them; they are not added.
  const Index some = std::min(grad_mixed.rows, first + lag);
  const Index all = std::min(grad_mixed.rows, first + lag + summaries.rows - 1);
  const Panel<A> products = panel(scratch.data, all - some, summaries.rows);
  multiply_right_transposed(products, grad_mixed.row_range(some, all - some), summaries);
  for (Index i = some; i < all; ++i)
    for (Index b = 0; b <= i - lag - first; ++b) grad_mixing.row(i)[b] += products.row(i - some)[b];
  mix_matrix_gradient(grad_mixed.row_range(all, grad_mixed.rows - all), summaries,
                      grad_mixing.row_range(all, grad_mixed.rows - all));
}

}  // namespace cpu

MHLA_NAMESPACE_END
