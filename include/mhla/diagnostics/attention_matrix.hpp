// SPDX-License-Identifier: MIT
// The attention matrix that MHLA never forms, for inspection (arXiv 2601.07832, eq. 5).
#pragma once

#include <mhla/reference/mhla.hpp>

MHLA_NAMESPACE_BEGIN
namespace diagnostics {

/// \defgroup diagnostics Diagnostics
/// What an attention matrix is like: its rank, bounds of it, entropy of its rows, and what a call
/// costs. For experiments, not for training loops: quadratic in the tokens, allocating.
/// \code
/// mhla::testing::HostTensor<float, 2> weights(tokens, tokens);
/// mhla::diagnostics::attention_matrix(attention, q_view, k_view, mix_view, 0, 0, weights.view());
/// const mhla::diagnostics::Spectrum spectrum(weights.view());
/// std::cout << spectrum.rank() << " " << spectrum.effective_rank() << " "
///           << mhla::diagnostics::mean_row_entropy(weights.view()) << "\n";
/// \endcode
/// \{

/// Fills weights [query tokens, key tokens], of one batch item and head, with
///
///     weights[t, j] = s m[b(t), b(j)] (R phi(q_t))^T R phi(k_j),   0 if t does not see j
///
/// before any normalizer, which changes neither the rank nor, for MixedKeySum, the result of
/// `normalize_rows`. Quadratic in the tokens, in time and memory.
/// \throws ShapeError if shapes do not fit.
template <AttentionVariant V, class Element, class T = std::remove_const_t<Element>>
void attention_matrix(const V& attention, const TensorView<Element, 4>& q, const InputView<T, 4>& k,
                      const InputView<Accumulator<T>, 3>& mix, Index batch, Index head,
                      const TensorView<Accumulator<std::type_identity_t<T>>, 2>& weights) {
  reference::mhla_weights(attention, q, k, mix, batch, head, reference::Weights::unnormalized,
                          weights);
}

/// Divides every row by its sum, in place; a row whose sum is 0 becomes 0. The rows are then those
/// of MixedKeySum without epsilon. (Rows of MixedProduct do not sum to 1.)
template <WritableScalar T>
void normalize_rows(const TensorView<T, 2>& weights) {
  for (Index t = 0; t < weights.extent[0]; ++t) {
    T sum = 0;
    for (Index j = 0; j < weights.extent[1]; ++j) sum += weights(t, j);
    for (Index j = 0; j < weights.extent[1]; ++j)
      weights(t, j) = sum == 0 ? T(0) : weights(t, j) / sum;
  }
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(void attention_matrix,
                  "mhla: call attention_matrix(attention, q, k, mix, batch, head, weights) with "
                  "views of one scalar, mix and weights of the type it is accumulated in, weights "
                  "not const")
MHLA_NO_SUCH_CALL(void normalize_rows,
                  "mhla: normalize_rows takes a view of rank 2 of float or double to write to")
/// \endcond

/// \}

}  // namespace diagnostics
MHLA_NAMESPACE_END
