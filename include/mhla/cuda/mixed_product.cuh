// SPDX-License-Identifier: MIT
// The MixedProduct normalizer of the released vision, DiT and video code, and its adjoint. All
// blocks have n tokens; p is a token's offset in its block. Arrays of query heads are [units,
// blocks, heads of the kv head, n].
//
//   R_bp = <Q_bp, z_b>           den_ip = sum_b m_ib R_bp + epsilon
//
// Adjoint, with C_ip the gradient of den_ip:
//   dm += C R^T    dR = m^T C    dQ_bp += dR_bp z_b    dz_b = sum_p dR_bp Q_bp
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/gemm.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// den = m R + epsilon of one head; panels are [blocks, n].
template <class A>
void mixed_product_denominators(const CudaDevice& device, const Panels<const A>& mixing,
                                const Panels<A>& products, const Panels<A>& denominators) {
  multiply(device, denominators, mixing, products);
}

/// den += epsilon, all heads.
template <class A>
struct AddEpsilon {
  A epsilon;
  A* denominators;

  MHLA_HOST_DEVICE void operator()(Index r) const { denominators[r] += epsilon; }
};

/// dm += C R^T of one head
template <class A>
void mixed_product_matrix_gradient(const CudaDevice& device, const Panels<A>& grad_denominators,
                                   const Panels<A>& products, const Panels<A>& grad_mixing) {
  multiply_right_transposed(device, grad_mixing, grad_denominators, products, Into::add);
}

/// dR = m^T C of one head
template <class A>
void mixed_product_gradient(const CudaDevice& device, const Panels<const A>& mixing,
                            const Panels<A>& grad_denominators, const Panels<A>& grad_products) {
  multiply_left_transposed(device, grad_products, mixing, grad_denominators);
}

}  // namespace cuda

MHLA_NAMESPACE_END
