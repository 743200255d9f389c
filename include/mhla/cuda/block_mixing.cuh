// SPDX-License-Identifier: MIT
// Mixing of the block summaries (arXiv 2601.07832, eq. 4) and its adjoint. A panel here holds the
// summaries, or key sums, of all blocks of one sequence, one block per row.
//
//   S~_i = sum_b m_ib S_b       causal: over b <= i - lag only
//   dS_b = sum_i m_ib dS~_i     dm_ib = <dS~_i, S_b>
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/gemm.cuh>
#include <mhla/policy/causality.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// S~ = m S
template <class A>
void mix(const CudaDevice& device, Sight sight, const Panels<const A>& mixing,
         const Panels<A>& summaries, const Panels<A>& mixed) {
  if (sight != Sight::all) {
    multiply_lower(device, mixed, mixing, summaries, LowerTriangle{0, lag_of(sight)});
  } else {
    multiply(device, mixed, mixing, summaries);
  }
}

/// dS (+)= m^T dS~
template <class A>
void mix_summary_gradient(const CudaDevice& device, Sight sight, const Panels<const A>& mixing,
                          const Panels<A>& grad_mixed, const Panels<A>& grad_summaries, Into into) {
  if (sight != Sight::all) {
    multiply_lower_transposed(device, grad_summaries, mixing, grad_mixed,
                              LowerTriangle{0, lag_of(sight)}, into);
  } else {
    multiply_left_transposed(device, grad_summaries, mixing, grad_mixed, into);
  }
}

/// dm (+)= dS~ S^T; what no query sees is skipped when the parts are summed.
template <class A>
void mix_matrix_gradient(const CudaDevice& device, const Panels<A>& grad_mixed,
                         const Panels<A>& summaries, const Panels<A>& grad_mixing, Into into) {
  multiply_right_transposed(device, grad_mixing, grad_mixed, summaries, into);
}

/// dmix from its parts, [parts, matrices of a kv head, query blocks, key blocks], summed in order,
/// plus the diagonal's other part, of causal blocks' own tokens.
template <class A>
struct WriteMixingGradient {
  const A* parts;
  const A* own_parts;  // [parts, matrices, blocks]: the diagonal's, if own blocks are separate
  Index count;         // parts
  Index kv_heads;      // part p belongs to kv head p % kv_heads
  Index matrices;      // of a part
  Index query_blocks;
  Index key_blocks;
  Sight sight;
  TensorView<A, 3> destination;
  Update update;

  MHLA_HOST_DEVICE void operator()(Index at) const {
    const Index b = at % destination.extent[2];
    const Index i = at / destination.extent[2] % destination.extent[1];
    const Index h = at / destination.extent[2] / destination.extent[1];
    A& to = destination(h, i, b);
    const bool own = own_parts != nullptr && i == b;
    if (i >= query_blocks || b >= key_blocks || !(own || sees_whole_block(sight, i, b))) {
      if (update == Update::overwrite) to = A(0);
      return;
    }
    const bool shared = destination.extent[0] == 1;
    double sum = 0;
    for (Index p = shared ? 0 : h / matrices; p < count; p += shared ? 1 : kv_heads) {
      const Index row = (p * matrices + (shared ? 0 : h % matrices)) * query_blocks + i;
      sum += static_cast<double>(own ? own_parts[row] : parts[row * key_blocks + b]);
    }
    to = update == Update::overwrite ? static_cast<A>(sum) : to + static_cast<A>(sum);
  }
};

}  // namespace cuda

MHLA_NAMESPACE_END
