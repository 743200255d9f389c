// SPDX-License-Identifier: MIT
// How widely a query spreads its attention: the entropy of a row of the attention matrix
// (arXiv 2601.07832, figure 3b: low entropy is sharp attention).
#pragma once

#include <algorithm>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>

MHLA_NAMESPACE_BEGIN
namespace diagnostics {

/// \addtogroup diagnostics
/// \{

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
MHLA_NO_SUCH_CALL(double row_entropy, "mhla: call row_entropy(weights, row) with a view of rank 2")
MHLA_NO_SUCH_CALL(double mean_row_entropy,
                  "mhla: call mean_row_entropy(weights) with a view of rank 2")
/// \endcond

/// \}

}  // namespace diagnostics
MHLA_NAMESPACE_END
