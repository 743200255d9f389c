// SPDX-License-Identifier: MIT
// The own block of a causal query (arXiv 2601.07832, section 4.2, with the mask its text leaves
// out), tile by tile with a running summary, and its adjoint. Inside block i the coefficient m_ii
// is constant, so this is causal linear attention scaled by m_ii:
//
//   P = S~_i + m_ii sum over earlier tiles K^r^T V         p_t = z~_i + m_ii sum_{j <= t} K_j
//   num = Q^r P + m_ii tril(Q^r K^r^T) V                   den_t = <Q_t, p_t> + epsilon
//
// Adjoint, U = dy / den, c the gradient of den; later tiles have left dP = sum Q^r^T U and
// w = sum c Q:
//   dQ^r  = U P^T + m_ii tril(U V^T) K^r                   dQ_t += c_t p_t
//   dK^r += m_ii (V dP^T + tril(U V^T)^T Q^r)              dK_j += m_ii (w + sum_{t >= j} c_t Q_t)
//   dV   += m_ii (K^r dP + tril(Q^r K^r^T)^T U)
//   dm_ii += sum_j <K^r_j, dK^r_j / m_ii> + <K_j, dK_j / m_ii>
//
// No entry above the diagonal is ever multiplied, so that a NaN does not reach earlier tokens.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/block_summary.hpp>
#include <mhla/cpu/gemm.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// num += tril(Q^r (m_ii K^r)^T) V; `scores` is scratch, here for their transpose.
//                                                                       // [tile tokens, value_dim]
template <class A>
void read_out_own_tile(const Panel<const A>& rotated_queries, const Panel<const A>& scaled_keys,
                       const Panel<const A>& values, const Panel<A>& scores,
                       const Panel<A>& numerators) {
  multiply_right_transposed(scores, scaled_keys, rotated_queries);
  multiply_lower(numerators, scores, values, Into::add);
}

/// P += (m_ii K^r)^T V, or the same for P^T: what the tile adds for later ones.
template <class A>
void absorb_own_tile(const Panel<const A>& scaled_keys, const Panel<const A>& values,
                     Orientation orientation, const Panel<A>& running_summary) {
  if (orientation == Orientation::not_transposed) {
    multiply_left_transposed(running_summary, scaled_keys, values, Into::add);
  } else {
    multiply_left_transposed(running_summary, values, scaled_keys, Into::add);
  }
}

/// p_t of every token of the tile; `running` is p before the tile, and on return p after it.
//                                                                     // [tile tokens, feature_dim]
template <class A>
void running_key_sums(const Panel<const A>& keys, A own_weight, const CompensatedSum<A>& running,
                      const Panel<A>& sums) {
  add_rows(running, own_weight, keys, Into::add, sums);
}

/// dQ^r += tril(U V^T) (m_ii K^r); `scores` is scratch.              // [tile tokens, feature_dim]
template <class A>
void read_out_own_tile_query_gradient(const Panel<const A>& grad_numerators,
                                      const Panel<const A>& scaled_keys,
                                      const Panel<const A>& values, const Panel<A>& scores,
                                      const Panel<A>& grad_rotated) {
  multiply_right_transposed(scores, values, grad_numerators);
  multiply_lower(grad_rotated, scores, scaled_keys, Into::add);
}

/// dK^r / m_ii += tril(U V^T)^T Q^r: the tile's own queries.         // [tile tokens, feature_dim]
template <class A>
void read_out_own_tile_key_gradient(const Panel<const A>& grad_numerators,
                                    const Panel<const A>& rotated_queries,
                                    const Panel<const A>& values, const Panel<A>& scores,
                                    const Panel<A>& grad_rotated) {
  multiply_right_transposed(scores, grad_numerators, values);
  multiply_lower_transposed(grad_rotated, scores, rotated_queries, Into::add);
}

/// dV / m_ii += tril(Q^r K^r^T)^T U: the tile's own queries.           // [tile tokens, value_dim]
template <class A>
void read_out_own_tile_value_gradient(const Panel<const A>& grad_numerators,
                                      const Panel<const A>& rotated_queries,
                                      const Panel<const A>& rotated_keys, const Panel<A>& scores,
                                      const Panel<A>& grad_values) {
  multiply_right_transposed(scores, rotated_queries, rotated_keys);
  multiply_lower_transposed(grad_values, scores, grad_numerators, Into::add);
}

/// rows_j <- running + sum_{t >= j} rows_t, and `running` becomes the whole sum: w. rows_t is c_t
/// Q_t on entry and dK_t / m_ii on return.
//                                                                     // [tile tokens, feature_dim]
template <class A>
void accumulate_backwards(const Panel<A>& rows, Span<A> running) {
  for (Index t = rows.rows - 1; t >= 0; --t) {
    add_scaled_row(running.data, A(1), rows.row(t), rows.cols);
    copy_row(rows.row(t), running.data, rows.cols);
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
