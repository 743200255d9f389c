// SPDX-License-Identifier: MIT
// Block summaries (arXiv 2601.07832, eq. 3) and their adjoint, all blocks at once. K: phi(k), K^r:
// the same rotated, V: the values of a block.
//
//   S_b = K^r^T V     z_b = sum_j K_j
//   dK^r = V dS_b^T   dK = dz_b for every token     dV = K^r dS_b
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/launch.cuh>
#include <mhla/cuda/gemm.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// S_b                                                        // [units * blocks, feature_dim,
/// value_dim]
template <class A>
void summarize(const CudaDevice& device, const Panels<A>& rotated, const Panels<A>& values,
               const Panels<A>& summaries) {
  multiply_left_transposed(device, summaries, rotated, values);
}

/// A compensated sum: its error does not grow with the number of terms. Zeros change nothing.
template <class A>
class LongSum {
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
  Panels<const A> rows;
  const A* weights;  // [panels, rows]
  A* sums;           // [panels, cols]

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index n = i / rows.cols;
    const Index c = i % rows.cols;
    LongSum<A> sum;
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

/// z_b                                                                   // [units * blocks,
/// feature_dim]
template <class A>
void sum_keys(const CudaDevice& device, const Panels<A>& features, A* key_sums) {
  weighted_row_sums<A>(device, features, nullptr, key_sums);
}

/// dK^r (+)= V dS_b^T
template <class A>
void summarize_key_gradient(const CudaDevice& device, const Panels<A>& values,
                            const Panels<A>& grad_summaries, const Panels<A>& grad_rotated,
                            Into into) {
  multiply_right_transposed(device, grad_rotated, values, grad_summaries, into);
}

/// dV (+)= K^r dS_b
template <class A>
void summarize_value_gradient(const CudaDevice& device, const Panels<A>& rotated,
                              const Panels<A>& grad_summaries, const Panels<A>& grad_values,
                              Into into) {
  multiply(device, grad_values, rotated, grad_summaries, into);
}

}  // namespace cuda

MHLA_NAMESPACE_END
