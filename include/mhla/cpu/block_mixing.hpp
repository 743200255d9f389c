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

#include <mhla/cpu/gemm.hpp>
#include <mhla/policy/causality.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// mixed [rows, width] = mixing [rows, key blocks] summaries [key blocks, width], for query blocks
/// [first, first + rows).
template <Sight sight, class A>
void mix(const Panel<const A>& mixing, Index first, const Panel<const A>& summaries,
         const Panel<A>& mixed) {
  if constexpr (sight == Sight::all) {
    mix_rows(mixed, mixing, false, summaries, Into::overwrite);
  } else {
    const Index seen = first + mixing.rows - lag_of(sight);  // by the last row
    mix_rows(mixed, mixing.col_range(0, seen), false, summaries, Into::overwrite, Terms::past);
  }
}

/// The adjoint in the summaries, for key blocks [first, first + grad.rows):
/// dS_b (+)= sum_i m_ib dS~_i, over i >= b + lag unless all see all.            // [rows, width]
/// Of a part of the matrix, i and b count from its corner, so that lag may be less than 0, or more
/// than 1.
template <Sight sight, class A>
void mix_summary_gradient(const Panel<const A>& mixing, Index first, Index lag,
                          const Panel<const A>& grad_mixed, const Panel<A>& grad, Into into) {
  if constexpr (sight == Sight::all) {
    mix_rows(grad, mixing.col_range(first, grad.rows), true, grad_mixed, into);
  } else {
    // Key blocks that all query blocks see, then those that some or, the last one, none sees.
    const Index by_all = std::clamp(-(first + lag), Index{0}, grad.rows);
    const Index begin = first + by_all + lag;
    const Index seen = (std::max)(mixing.rows - begin, Index{-1});  // by the first that some see
    const Index by_some = (std::min)(seen + 1, grad.rows - by_all);
    const Index by_none = grad.rows - by_all - by_some;
    if (by_all > 0)
      mix_summary_gradient<Sight::all>(mixing, first, lag, grad_mixed, grad.row_range(0, by_all),
                                       into);
    if (by_some > 0)
      mix_rows(grad.row_range(by_all, by_some),
               mixing.row_range(begin, seen).col_range(first + by_all, by_some), true,
               grad_mixed.row_range(begin, seen), into, Terms::future);
    if (into == Into::overwrite) set_zero(grad.row_range(grad.rows - by_none, by_none));
  }
}

/// Query blocks [first, first + those of a panel) of `all`.
struct MatrixRows {
  Index first;
  Index all;
};

/// The adjoint in the mixing matrix: dm_ib += <dS~_i, S_b>, for query blocks `rows` and key blocks
/// [first, first + summaries.rows). Called for S and for z, it adds both terms. `scratch`, unless
/// all see all, has room for a product of two key blocks each.
//                                                                     // [query blocks, key blocks]
template <Sight sight, class A>
void mix_matrix_gradient(const Panel<const A>& grad_mixed, const MatrixRows& rows, Index first,
                         const Panel<const A>& summaries, const Panel<A>& grad_mixing,
                         Span<A> scratch) {
  if constexpr (sight == Sight::all) {
    multiply_right_transposed(grad_mixing, grad_mixed, summaries, Into::add, rows.all);
  } else {
    // Query blocks from `some` on see the first of the key blocks, from `all` on the last.
    // Computing products with blocks that a row does not see is cheaper than skipping them; they
    // are not added.
    constexpr Index lag = lag_of(sight);
    const Index some = (std::min)(rows.all, first + lag);
    const Index all = (std::min)(rows.all, first + lag + summaries.rows - 1);
    const auto row_of = [&](Index i) {
      return std::clamp(i - rows.first, Index{0}, grad_mixed.rows);
    };
    const Index begin = row_of(some);
    const Index end = row_of(all);
    const Panel<A> products = panel(scratch.data, end - begin, summaries.rows);
    multiply_right_transposed(products, grad_mixed.row_range(begin, end - begin), summaries,
                              Into::overwrite, all - some);
    for (Index r = begin; r < end; ++r)
      for (Index b = 0; b <= rows.first + r - lag - first; ++b)
        grad_mixing.row(r)[b] += products.row(r - begin)[b];
    const Index rest = grad_mixed.rows - end;
    multiply_right_transposed(grad_mixing.row_range(end, rest), grad_mixed.row_range(end, rest),
                              summaries, Into::add, rows.all - all);
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
