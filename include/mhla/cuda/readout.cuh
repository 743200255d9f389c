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
#include <mhla/cuda/gemm.cuh>
#include <mhla/cuda/token_block.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

template <class A>
MHLA_HOST_DEVICE A inner_product(Index count, const A* a, const A* b) {
  A sum = A(0);
  for (Index c = 0; c < count; ++c) sum += a[c] * b[c];
  return sum;
}

/// num = Q^r S~                                                                // [rows, value_dim]
template <class A>
void read_out(const CudaDevice& device, const Panels<A>& rotated, const Panels<A>& mixed_summaries,
              const Panels<A>& numerators) {
  multiply(device, numerators, rotated, mixed_summaries);
}

/// den = Q z~ + epsilon                                                                    //
/// [rows]
template <class A>
struct MixedKeySumDenominators {
  Panels<const A> features;
  const A* key_sums;  // [panels, feature_dim]
  A epsilon;
  A* denominators;

  MHLA_HOST_DEVICE void operator()(Index r) const {
    const Index n = r / features.rows;
    denominators[r] = inner_product(features.cols, features.row(n, r % features.rows),
                                    key_sums + n * features.cols) +
                      epsilon;
  }
};

/// rows /= den, 0 where den is 0 or the token absent: y from num, and U from dy.
template <class A>
struct DivideRows {
  PanelRows rows;
  const A* denominators;
  Index dim;
  A* panel;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index r = i / dim;
    const A den = denominators[r];
    panel[i] = den == A(0) || !rows[r].present() ? A(0) : panel[i] / den;
  }
};

/// c_t = -<Q^r_t, dQ^r_t> / den_t, 0 where den_t is 0 or the token absent.                 //
/// [rows]
template <class A>
struct DenominatorGradient {
  PanelRows rows;
  const A* rotated;
  const A* grad_rotated;
  Index feature_dim;
  const A* denominators;
  A* gradient;

  MHLA_HOST_DEVICE void operator()(Index r) const {
    const A den = denominators[r];
    const Index at = r * feature_dim;
    gradient[r] = den == A(0) || !rows[r].present()
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
