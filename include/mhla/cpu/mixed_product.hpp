// SPDX-License-Identifier: MIT
// The MixedProduct normalizer of the released vision, DiT and video code, and its adjoint. All
// blocks have n tokens; p is a token's offset in its block; R, den, C and dR are [blocks, n].
//
//   R_bp = <Q_bp, z_b>           den_ip = sum_b m_ib R_bp + epsilon
//
// Adjoint, with C_ip the gradient of den_ip:
//   dm += C R^T    dR = m^T C    dQ_bp += dR_bp z_b    dz_b += sum_p dR_bp Q_bp
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/block_summary.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/cpu/readout.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// R of one tile: the products of a block's queries with the block's own key sum.  // [tile tokens]
template <class A>
void own_key_sum_products(const Panel<const A>& features, Span<const A> key_sum, Span<A> products) {
  row_products(products, features, key_sum);
}

/// den = m R + epsilon for all blocks of a head.                                       // [blocks,
/// n]
template <class A>
void mixed_product_denominators(const Panel<const A>& mixing, const Panel<const A>& products,
                                A epsilon, const Panel<A>& denominators) {
  multiply(denominators, mixing, products);
  for (Index i = 0; i < denominators.rows; ++i) {
    A* row = denominators.row(i);
    for (Index p = 0; p < denominators.cols; ++p) row[p] += epsilon;
  }
}

/// dm += C R^T                                                                    // [blocks,
/// blocks]
template <class A>
void mixed_product_matrix_gradient(const Panel<const A>& grad_denominators,
                                   const Panel<const A>& products, const Panel<A>& grad_mixing) {
  multiply_right_transposed(grad_mixing, grad_denominators, products, Into::add);
}

/// dR = m^T C                                                                          // [blocks,
/// n]
template <class A>
void mixed_product_gradient(const Panel<const A>& mixing, const Panel<const A>& grad_denominators,
                            const Panel<A>& grad_products) {
  multiply_left_transposed(grad_products, mixing, grad_denominators);
}

/// dz_b (+)= sum_p dR_bp Q_bp over one tile. (dQ_bp += dR_bp z_b is left to the unpacking.)
template <class A>
void own_key_sum_gradient(const Panel<const A>& features, Span<const A> grad_products,
                          Span<A> grad_key_sum, Into into) {
  weighted_row_sum(grad_key_sum, features, grad_products, into);
}

}  // namespace cpu

MHLA_NAMESPACE_END
