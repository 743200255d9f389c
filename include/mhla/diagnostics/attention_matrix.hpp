// SPDX-License-Identifier: MIT
// The attention matrix that MHLA never forms, formed to be looked at: what each query gives each
// key (arXiv 2601.07832, eq. 5).
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/policy/variant.hpp>
#include <mhla/reference/mhla.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN
namespace diagnostics {

/// Fills weights [query tokens, key tokens] with
///   weights[t, j] = s m[b(t), b(j)] (R phi(q_t)) . (R phi(k_j)),   0 where query t does not see j
/// of one batch item and head: before any normalizer, which changes neither the rank nor, for
/// MixedKeySum, what `normalize_rows` makes of it. Quadratic in tokens, in time and memory.
/// Shapes as for the attention; throws ShapeError where one does not fit.
template <AttentionVariant V, class Element, class T = std::remove_const_t<Element>>
void attention_matrix(const V& attention, const TensorView<Element, 4>& q,
                      const TensorView<const std::type_identity_t<T>, 4>& k,
                      const TensorView<const Accumulator<std::type_identity_t<T>>, 3>& mix,
                      Index batch, Index head,
                      const TensorView<Accumulator<std::type_identity_t<T>>, 2>& weights) {
  reference::mhla_weights(attention, q, k, mix, batch, head, reference::Weights::unnormalized,
                          weights);
}

/// Divides every row by its sum, in place; a row whose sum is 0 becomes 0. The rows are then the
/// attention of MixedKeySum without epsilon. (Rows of MixedProduct do not sum to 1 by themselves.)
template <class T>
void normalize_rows(const TensorView<T, 2>& weights) {
  for (Index t = 0; t < weights.extent[0]; ++t) {
    T sum = 0;
    for (Index j = 0; j < weights.extent[1]; ++j) sum += weights(t, j);
    for (Index j = 0; j < weights.extent[1]; ++j)
      weights(t, j) = sum == 0 ? T(0) : weights(t, j) / sum;
  }
}

}  // namespace diagnostics
MHLA_NAMESPACE_END
