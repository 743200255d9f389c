// SPDX-License-Identifier: MIT
// One tile's part of a block's summary (arXiv 2601.07832, eq. 3), and its readout (eq. 5). K:
// phi(k) of a tile of block b, K^r: the same rotated, V: its values.
//
//   S_b = sum over tiles K^r^T V        [feature_dim, value_dim]
//   z_b = sum over tiles K^T 1          [feature_dim]
//
// Adjoint:   dK^r = V dS_b^T     dK += 1 dz_b^T     dV = K^r dS_b
//
// The forward pass multiplies by S, the backward pass by its transpose, and each keeps its own
// form.
//
// Q: s phi(q) of a tile, Q^r: the same rotated, S~ and z~: the mixed summary and key sum of its
// block.
//
//   num = Q^r S~     den = Q z~ + epsilon     y = num / den, 0 where den is 0
//
// Adjoint, with U = dy / den (0 where den is 0):
//   dQ^r = U S~^T    c_t = -<Q^r_t, dQ^r_t> / den_t    dQ += c z~^T
//   dS~ += Q^r^T U   dz~ += Q^T c
// so that neither y nor den is kept.
//
// Under Causal a query also reads its own block (section 4.2, with the mask its text leaves out),
// tile by tile with a running summary. Inside block i the coefficient m_ii is constant, so this is
// causal linear attention scaled by m_ii:
//
//   P = S~_i + m_ii sum over earlier tiles K^r^T V         p_t = z~_i + m_ii sum_{j <= t} K_j
//   num = Q^r P + m_ii tril(Q^r K^r^T) V                   den_t = <Q_t, p_t> + epsilon
//
// Adjoint, where later tiles have left dP = sum Q^r^T U and w = sum c Q:
//   dQ^r  = U P^T + m_ii tril(U V^T) K^r                   dQ_t += c_t p_t
//   dK^r += m_ii (V dP^T + tril(U V^T)^T Q^r)              dK_j += m_ii (w + sum_{t >= j} c_t Q_t)
//   dV   += m_ii (K^r dP + tril(Q^r K^r^T)^T U)
//   dm_ii += sum_j <K^r_j, dK^r_j / m_ii> + <K_j, dK_j / m_ii>
//
// No entry above the diagonal is ever multiplied, so that a NaN does not reach earlier tokens.
#pragma once

#include <mhla/cpu/gemm.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Orientation of summaries: [feature_dim, value_dim], or [value_dim, feature_dim].
enum class Orientation { not_transposed, transposed };

/// Adds a tile to its block's summary and key sum; the first tile of a block overwrites. Without a
/// normalizer `key_sum` is empty. `prefetch`, if any, is fetched meanwhile.
template <class A>
void summarize(const Panel<const A>& features, const Panel<const A>& rotated,
               const Rows<const A>& values, Orientation orientation, const Panel<A>& summary,
               const CompensatedSum<A>& key_sum, Into into, Prefetch* prefetch) {
  const Rows<const A> keys = rotated.placed();
  const bool transposed = orientation == Orientation::transposed;
  multiply_left_transposed_rows(summary, rotated.rows, transposed ? values : keys,
                                transposed ? keys : values, into, prefetch);
  if (key_sum.sum.size > 0) add_rows(key_sum, A(1), features, into);
}

/// den = Q z~ + epsilon                                                          // [tile tokens]
/// Of `key_sums` every row is z~ of the block, or under Causal p_t.
template <class A>
void mixed_key_sum_denominators(const Panel<const A>& features, const Panel<const A>& key_sums,
                                A epsilon, Span<A> denominators) {
  row_products(denominators, features, key_sums);
  for (A& den : denominators) den += epsilon;
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

/// num += tril(Q^r (m_ii K^r)^T) V; `scores` is scratch, here for their transpose.
//                                                                       // [tile tokens, value_dim]
template <class A>
void read_out_own_tile(const Panel<const A>& rotated_queries, const Panel<const A>& scaled_keys,
                       const Panel<const A>& values, const Panel<A>& scores,
                       const Panel<A>& numerators) {
  multiply_right_transposed(scores, scaled_keys, rotated_queries);
  multiply_lower(numerators, scores, values, Into::add);
}

}  // namespace cpu

MHLA_NAMESPACE_END
