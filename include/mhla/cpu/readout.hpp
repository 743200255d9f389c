// SPDX-License-Identifier: MIT
// Readout of one tile of queries (arXiv 2601.07832, eq. 5) and its adjoint. Q: s phi(q) of the
// tile, Q^r: the same rotated, S~ and z~: the mixed summary and key sum of its block.
//
//   num = Q^r S~     den = Q z~ + epsilon     y = num / den, 0 where den is 0
//
// Adjoint, with U = dy / den (0 where den is 0):
//   dQ^r = U S~^T    c_t = -<Q^r_t, dQ^r_t> / den_t    dQ += c z~^T
//   dS~ += Q^r^T U   dz~ += Q^T c
// so that neither y nor den is kept.
#pragma once

#include <cmath>
#include <limits>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/gemm.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// den = Q z~ + epsilon                                                          // [tile tokens]
/// `key_sums` is a Span, z~ of the block, or under Causal a Panel, p_t of every token.
template <class A, class KeySums>
void mixed_key_sum_denominators(const Panel<const A>& features, const KeySums& key_sums, A epsilon,
                                Span<A> denominators) {
  row_products(denominators, features, key_sums);
  for (Index t = 0; t < features.rows; ++t) denominators[t] += epsilon;
}

/// rows_t /= den_t, 0 where den_t is 0: y from num, and U from dy. Without a normalizer
/// `denominators` is empty.                                            // [tile tokens, value_dim]
template <class A>
void divide_rows(const Panel<A>& rows, Span<const A> denominators) {
  if (denominators.size == 0) return;
  for (Index t = 0; t < rows.rows; ++t) {
    A* row = rows.row(t);
    const A den = denominators[t];
    if (den == A(0)) {
      for (Index c = 0; c < rows.cols; ++c) row[c] = A(0);
    } else if ((std::abs)(den) > A(1) / (std::numeric_limits<A>::max)()) {
      const A inverse = A(1) / den;
      for (Index c = 0; c < rows.cols; ++c) row[c] *= inverse;
    } else {  // den is NaN, or so small that its inverse is not finite
      for (Index c = 0; c < rows.cols; ++c) row[c] /= den;
    }
  }
}

/// y = Q^r S~, row t times inverse_t; all 1 if `inverses` is empty.  // [tile tokens, value_dim]
template <class A>
void read_out(const Panel<const A>& rotated, const Panel<const A>& mixed_summary,
              Span<const A> inverses, const Rows<A>& y, Prefetch* prefetch) {
  multiply_into_rows(y, rotated, mixed_summary, inverses, prefetch);
}

/// dQ^r = U S~^T, of the transposed S~^T.                            // [tile tokens, feature_dim]
template <class A>
void read_out_query_gradient(const Panel<const A>& grad_numerators,
                             const Panel<const A>& mixed_summary_transposed,
                             const Panel<A>& grad_rotated, Prefetch* prefetch) {
  multiply_into_rows(grad_rotated.placed(), grad_numerators, mixed_summary_transposed,
                     Span<const A>{}, prefetch);
}

/// a / b. Not inlined: a compiler may move the division before the test whether b is 0, and where
/// exceptions trap a division by 0 ends the program.
template <class A>
MHLA_OUT_OF_LINE A quotient(A a, A b) {
  return a / b;
}

/// c_t = -<Q^r_t, dQ^r_t> / den_t: the gradient of den_t, since
/// -<dy_t, num_t> / den_t^2 = -<U_t, Q^r_t S~> / den_t. 0 where den_t is 0.        // [tile tokens]
template <class A>
void denominator_gradient(const Panel<const A>& rotated, const Panel<const A>& grad_rotated,
                          Span<const A> denominators, Span<A> gradient) {
  row_products(gradient, rotated, grad_rotated);
  for (Index t = 0; t < rotated.rows; ++t)
    gradient[t] = denominators[t] == A(0) ? A(0) : quotient(-gradient[t], denominators[t]);
}

/// dS~^T (+)= U^T Q^r                                                 // [value_dim, feature_dim]
template <class A>
void read_out_summary_gradient(const Panel<const A>& rotated, const Panel<const A>& grad_numerators,
                               const Panel<A>& grad_mixed_summary_transposed, Into into,
                               Prefetch* prefetch) {
  multiply_left_transposed(grad_mixed_summary_transposed, grad_numerators, rotated, into, prefetch);
}

/// dz~ (+)= Q^T c                                                                 // [feature_dim]
template <class A>
void read_out_key_sum_gradient(const Panel<const A>& features, Span<const A> grad_denominators,
                               Span<A> grad_mixed_key_sum, Into into) {
  weighted_row_sum(grad_mixed_key_sum, features, grad_denominators, into);
}

}  // namespace cpu

MHLA_NAMESPACE_END
