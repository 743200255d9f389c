// SPDX-License-Identifier: MIT
// Rows of sums, as stages leave them and as they travel from rank to rank.
#pragma once

#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup distributed
/// \{

/// How summaries S, and dS~ in a backward pass, travel.
enum class Wire {
  exact,  ///< in the accumulator type
  /// S and dS~ as bfloat16, key sums and what belongs to them in the accumulator type: half the
  /// bytes. A rank rounds its own too, so that the bits are the same for any number of ranks.
  bfloat16,
};

/// \cond INTERNAL
// What a row consists of: `count` times S [summary], z [key_sum].
struct SumsLayout {
  Index count;
  Index summary;
  Index key_sum;

  Index elements() const { return checked_mul(count, checked_add(summary, key_sum)); }
  // Bytes of a row that travels.
  template <class A>
  Index bytes(Wire wire) const {
    constexpr auto size = static_cast<Index>(sizeof(A));
    if (wire == Wire::exact) return checked_mul(elements(), size);
    const Index rounded = checked_mul(checked_mul(count, summary), sizeof(BFloat16));
    return checked_mul(checked_add(ceil_div(rounded, size), checked_mul(count, key_sum)), size);
  }
};
// A row with the sums of every unit of a call, for each of some matrices.
template <AttentionVariant V>
SumsLayout sums_layout(const Problem& problem, Index matrices) {
  const Shape& shape = problem.shape;
  return {checked_mul(checked_mul(shape.batch, shape.kv_heads), matrices),
          checked_mul(problem.feature_dim, shape.value_dim),
          normalizes<V> ? problem.feature_dim : 0};
}
/// \endcond

/// \}

MHLA_NAMESPACE_END
