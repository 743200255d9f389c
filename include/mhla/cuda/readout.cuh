// SPDX-License-Identifier: MIT
// Readout of all query blocks (arXiv 2601.07832, eq. 5) and its adjoint. A panel holds the queries
// that read one mixed summary. Q: s phi(q), Q^r: the same rotated.
//
//   num = Q^r S~     den = Q z~ + epsilon     y = num / den, 0 where den is 0
//
// Adjoint, with U = dy / den (0 where den is 0):
//   dQ^r = U S~^T    c_t = -<Q^r_t, dQ^r_t> / den_t    dQ += c z~^T
//   dS~ = Q^r^T U    dz~ = Q^T c
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/row_units.cuh>
#include <mhla/cuda/gemm.cuh>
#include <mhla/cuda/token_block.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// num = Q^r S~                                                                // [rows, value_dim]
template <class A>
void read_out(const CudaDevice& device, const Panels<A>& rotated, const Panels<A>& mixed_summaries,
              const Panels<A>& numerators) {
  multiply(device, numerators, rotated, mixed_summaries);
}

/// den = Q z~ + epsilon, row by row; z~ is the sum of WeightedRow.
template <class A>
struct MixedKeySumDenominators {
  const A* features;  // [rows, feature_dim]
  Index feature_dim;
  WeightedRow<A> key_sums;
  A epsilon;
  A* denominators;

  MHLA_DEVICE void operator()(Index r) const {
    denominators[r] = inner_product(feature_dim, features + r * feature_dim,
                                    key_sums.of(static_cast<std::uint32_t>(r), feature_dim).sums) +
                      epsilon;
  }
};

/// c_t = -<Q^r_t, dQ^r_t> / den_t, row by row; 0 where den_t is 0 or the token absent.
template <class A>
struct DenominatorGradient {
  RowFinder rows;
  const A* rotated;
  const A* grad_rotated;
  Index feature_dim;
  const A* denominators;
  A* gradient;

  MHLA_DEVICE void operator()(Index r) const {
    const A den = denominators[r];
    const Index at = r * feature_dim;
    gradient[r] = den == A(0) || !rows[static_cast<std::uint32_t>(r)].present()
                      ? A(0)
                      : -inner_product(feature_dim, rotated + at, grad_rotated + at) / den;
  }
};

/// dQ^r = U S~^T                                                             // [rows, feature_dim]
template <class A>
void read_out_query_gradient(const CudaDevice& device, const Panels<A>& grad_numerators,
                             const Panels<A>& mixed_summaries, const Panels<A>& grad_rotated) {
  multiply_right_transposed(device, grad_rotated, grad_numerators, mixed_summaries);
}

/// dS~ = Q^r^T U                                                        // [feature_dim, value_dim]
template <class A>
void read_out_summary_gradient(const CudaDevice& device, const Panels<A>& rotated,
                               const Panels<A>& grad_numerators,
                               const Panels<A>& grad_mixed_summaries) {
  multiply_left_transposed(device, grad_mixed_summaries, rotated, grad_numerators);
}

}  // namespace cuda

MHLA_NAMESPACE_END
