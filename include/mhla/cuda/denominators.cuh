// SPDX-License-Identifier: MIT
// Key sums and denominators on panels, row by row, and their adjoints. Q: s phi(q), Q^r: the same
// rotated, c the gradient of den:
//
//   MixedKeySum:    den = Q z~ + epsilon
//                   c_t = -<Q^r_t, dQ^r_t> / den_t     dQ += c z~^T     dz~ = Q^T c
//
// MixedProduct, of the released vision, DiT and video code: all blocks have n tokens, p is a
// token's offset in its block; arrays of query heads are [units, blocks, heads of the kv head, n].
//
//   R_bp = <Q_bp, z_b>           den_ip = sum_b m_ib R_bp + epsilon
//   dm += C R^T    dR = m^T C    dQ_bp += dR_bp z_b    dz_b = sum_p dR_bp Q_bp
#pragma once

#include <mhla/cuda/token_block.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// A compensated sum: its error does not grow with the number of terms. Zeros change nothing.
template <class A>
class CompensatedSum {
 public:
  MHLA_HOST_DEVICE void add(A term) {
    const A before = sum_;
    sum_ += term;
    const A added = sum_ - before;
    lost_ += (before - (sum_ - added)) + (term - added);
  }
  MHLA_HOST_DEVICE A value() const { return sum_ + lost_; }

 private:
  A sum_ = A(0);
  A lost_ = A(0);
};

/// sum = the weighted sum of the rows of a panel, in order; without weights all are 1.
template <class A>
struct WeightedRowSum {
  Panels<A> rows;
  const A* weights;  // [panels, rows]
  A* sums;           // [panels, cols]

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index n = i / rows.cols;
    const Index c = i % rows.cols;
    CompensatedSum<A> sum;
    for (Index r = 0; r < rows.rows; ++r)
      sum.add(weights != nullptr ? weights[n * rows.rows + r] * rows.row(n, r)[c]
                                 : rows.row(n, r)[c]);
    sums[i] = sum.value();
  }
};
template <class A>
void weighted_row_sums(const CudaDevice& device, const Panels<A>& rows, const A* weights, A* sums) {
  launch(device, rows.count * rows.cols, WeightedRowSum<A>{rows, weights, sums});
}

/// den = Q z~ + epsilon; z~ is the sum of WeightedRow.
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

/// c_t; 0 where den_t is 0 or the token absent.
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

}  // namespace cuda

MHLA_NAMESPACE_END
