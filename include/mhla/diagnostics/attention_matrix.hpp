// SPDX-License-Identifier: MIT
// The attention matrix that MHLA never forms, for inspection (arXiv 2601.07832, eq. 5), and how
// widely a query spreads its attention: the entropy of a row (figure 3b: low entropy is sharp
// attention).
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
// -sum p log p, in nats, of p = size(j) over their sum, which is taken in units of `scale`.
template <class Size>
double entropy_of(Index count, double scale, const Size& size) {
  double sum = 0;
  for (Index j = 0; j < count; ++j) sum += size(j) / scale;
  if (sum == 0) return 0;
  double entropy = 0;
  for (Index j = 0; j < count; ++j) {
    const double p = size(j) / scale / sum;
    if (p != 0) entropy -= p * std::log(p);
  }
  return entropy;
}
/// \endcond

/// -sum_j p_j log p_j, in nats, of one row of weights [query tokens, key tokens], with p_j = |w_j|
/// over the row's sum of |w|: 0 if one key has all the weight, log(key tokens) if all have the
/// same. The row need not be normalized. For signed weights (Identity, rotations), whose entropy is
/// undefined, absolute values are taken. A row of zeros has entropy 0; NaN gives NaN.
template <class T>
double row_entropy(const TensorView<T, 2>& weights, Index row) {
  const auto size = [&](Index j) { return (std::abs)(static_cast<double>(weights(row, j))); };
  double largest = 0;
  for (Index j = 0; j < weights.extent[1]; ++j) largest = (std::max)(largest, size(j));
  return entropy_of(weights.extent[1], square_scale(largest), size);
}

/// The mean of `row_entropy` over the rows, in nats; 0 if there are none.
template <class T>
double mean_row_entropy(const TensorView<T, 2>& weights) {
  if (weights.extent[0] == 0) return 0;
  double sum = 0;
  for (Index t = 0; t < weights.extent[0]; ++t) sum += row_entropy(weights, t);
  return sum / static_cast<double>(weights.extent[0]);
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(void attention_matrix,
                  "mhla: call attention_matrix(attention, q, k, mix, batch, head, weights) with "
                  "views of one scalar, mix and weights of the type it is accumulated in, weights "
                  "not const")
MHLA_NO_SUCH_CALL(void normalize_rows,
                  "mhla: normalize_rows takes a view of rank 2 of float or double to write to")
MHLA_NO_SUCH_CALL(double row_entropy, "mhla: call row_entropy(weights, row) with a view of rank 2")
MHLA_NO_SUCH_CALL(double mean_row_entropy,
                  "mhla: call mean_row_entropy(weights) with a view of rank 2")
/// \endcond

/// \}

}  // namespace diagnostics
MHLA_NAMESPACE_END
