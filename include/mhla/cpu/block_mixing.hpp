// SPDX-License-Identifier: MIT
// Mixing of block summaries (arXiv 2601.07832, eq. 4) for a group of rows of the mixing matrix, and
// its adjoints. Summaries lie one per row: S [key blocks, feature_dim * value_dim],
// z [key blocks, feature_dim].
//
//   S~_i = sum_b m_ib S_b       z~_i = sum_b m_ib z_b
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cpu/gemm.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Query blocks, or key blocks in the adjoint, mixed at once: as many as leave the mixed summaries
/// in the L2 cache and still fill the product's registers.
inline constexpr Index max_mixing_rows = 32;

/// mixed [rows, width] = mixing [rows, key blocks] summaries [key blocks, width]
template <class A>
void mix(const Panel<const A>& mixing, const Panel<const A>& summaries, const Panel<A>& mixed) {
  multiply(mixed, mixing, summaries);
}

/// The adjoint in the summaries, for key blocks [first, first + grad.rows):
/// dS_b (+)= sum_i m_ib dS~_i                                                       // [rows,
/// width]
template <class A>
void mix_summary_gradient(const Panel<const A>& mixing, Index first,
                          const Panel<const A>& grad_mixed, const Panel<A>& grad, Into into) {
  const Panel<const A> columns{mixing.data + first, mixing.rows, grad.rows, mixing.stride};
  multiply_left_transposed(grad, columns, grad_mixed, into);
}

/// The adjoint in the mixing matrix: dm_ib += <dS~_i, S_b>, for the rows given.
/// Called for S and for z, it adds both terms.                             // [rows, key blocks]
template <class A>
void mix_matrix_gradient(const Panel<const A>& grad_mixed, const Panel<const A>& summaries,
                         const Panel<A>& grad_mixing) {
  multiply_right_transposed(grad_mixing, grad_mixed, summaries, Into::add);
}

}  // namespace cpu

MHLA_NAMESPACE_END
