// SPDX-License-Identifier: MIT
// Block summaries (arXiv 2601.07832, eq. 3) and their adjoint. K: phi(k) of one tile of block b,
// K^r: the same rotated, V: its values.
//
//   S_b = sum over tiles K^r^T V        [feature_dim, value_dim]
//   z_b = sum over tiles K^T 1          [feature_dim]
//
// The forward pass multiplies by S, the backward pass by its transpose, and each keeps its own
// form.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
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
  if (orientation == Orientation::not_transposed) {
    multiply_left_transposed_rows(summary, rotated.rows, rotated.placed(), values, into, prefetch);
  } else {
    multiply_left_transposed_rows(summary, rotated.rows, values, rotated.placed(), into, prefetch);
  }
  if (key_sum.sum.size > 0) add_rows(key_sum, A(1), features, into);
}

/// The adjoint in the keys: dK^r = V dS_b^T, of the transposed dS_b^T. (dK += 1 dz_b^T is left to
/// the unpacking, which is where rotated and unrotated gradients meet.)  // [tile tokens,
/// feature_dim]
template <class A>
void summarize_key_gradient(const Panel<const A>& values,
                            const Panel<const A>& grad_summary_transposed,
                            const Panel<A>& grad_rotated, Prefetch* prefetch) {
  multiply_into_rows(grad_rotated.placed(), values, grad_summary_transposed, Span<const A>{},
                     prefetch);
}

/// The adjoint in the values: dV = K^r dS_b.                           // [tile tokens, value_dim]
template <class A>
void summarize_value_gradient(const Panel<const A>& rotated, const Panel<const A>& grad_summary,
                              const Rows<A>& grad_values, Prefetch* prefetch) {
  multiply_into_rows(grad_values, rotated, grad_summary, Span<const A>{}, prefetch);
}

}  // namespace cpu

MHLA_NAMESPACE_END
