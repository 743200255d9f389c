// SPDX-License-Identifier: MIT
// Block summaries (arXiv 2601.07832, eq. 3) and their adjoint. K: phi(k) of one tile of block b,
// K^r: the same rotated, V: its values.
//
//   S_b = sum over tiles K^r^T V        [feature_dim, value_dim]
//   z_b = sum over tiles K^T 1          [feature_dim]
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/gemm.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Adds a tile to its block's summary and key sum; the first tile of a block overwrites. Without a
/// normalizer `key_sum` is empty.
template <class A>
void summarize(const Panel<const A>& features, const Panel<const A>& rotated,
               const Panel<const A>& values, const Panel<A>& summary, Span<A> key_sum, Into into) {
  multiply_left_transposed(summary, rotated, values, into);
  if (key_sum.size > 0) weighted_row_sum(key_sum, features, {}, into);
}

/// The adjoint in the keys: dK^r = V dS_b^T. (dK += 1 dz_b^T is left to the unpacking, which is
/// where rotated and unrotated gradients meet.)                      // [tile tokens, feature_dim]
template <class A>
void summarize_key_gradient(const Panel<const A>& values, const Panel<const A>& grad_summary,
                            const Panel<A>& grad_rotated) {
  multiply_right_transposed(grad_rotated, values, grad_summary);
}

/// The adjoint in the values: dV = K^r dS_b.                           // [tile tokens, value_dim]
template <class A>
void summarize_value_gradient(const Panel<const A>& rotated, const Panel<const A>& grad_summary,
                              const Panel<A>& grad_values) {
  multiply(grad_values, rotated, grad_summary);
}

}  // namespace cpu

MHLA_NAMESPACE_END
