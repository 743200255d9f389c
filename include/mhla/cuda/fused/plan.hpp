// SPDX-License-Identifier: MIT
// The memory of a call through 16-bit summaries, laid out in the caller's workspace. Like
// cuda/plan.hpp, it needs no CUDA header.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/fused/block_mixing.hpp>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/variant.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Planes of 16-bit elements that a summary has: its rounded value, and in the backward pass, where
/// large terms cancel, its rounding error.
inline constexpr int forward_parts = 1;
inline constexpr int backward_parts = 2;

/// Summaries in planes, `size` elements apart.
template <class T>
struct SummaryPlanes {
  T* data = nullptr;
  Index size = 0;
};

/// Scale of summaries of this many tokens: half's range ends at 65504.
template <class T>
float summary_scale(Index tokens) {
  float scale = 1;
  if constexpr (std::is_same_v<T, Half>)
    for (Index reach = 1; reach < tokens; reach *= 2) scale /= 2;
  return scale;
}

/// The mixing of a sequence.
template <class V>
MixingShape mixing_shape(const Extents<V>& e, const Sequence& queries, const Sequence& keys) {
  return {e.units(),      e.keys.kv_heads, e.mix_heads,      e.matrices,
          queries.blocks, keys.blocks,     e.summary_size(), sight_of<V>};
}

/// Whether mixed summaries of all sequences can overwrite the summaries.
template <class V>
bool mix_in_place(const V& variant, const Extents<V>& e) {
  bool all = e.queries.table.blocks == e.keys.table.blocks;
  for_each_sequence_side(variant, e, [&](const Sequence& queries, const Sequence& keys) {
    all = all && mixes_in_place(mixing_shape(e, queries, keys));
  });
  return all;
}

/// Such a call's workspace; `T` is the storage type.
template <class V, class T>
struct SummaryPlan : TablePlan<V, float> {
  int parts;                   // planes of every summary
  bool in_state = false;       // summaries and key sums lie in a forward state
  SummaryPlanes<T> summaries;  // [parts, units, key blocks, feature_dim, value_dim]
  Span<float> key_sums;        // [units, key blocks, feature_dim]
  /// [parts, units, query blocks, matrices, feature_dim, value_dim]; the forward pass, which does
  /// not need summaries once they are mixed, overwrites them if the kernel can.
  SummaryPlanes<T> mixed_summaries;
  Span<float> mixed_key_sums;  // [units, query blocks, matrices, feature_dim]

  // Backward pass only.
  Span<float> weights;       // [query rows]: 1 / den
  Span<float> sum_weights;   // [query rows]: c / r
  Span<float> own_products;  // [query rows]: each query's part of dm_ii
  SummaryPlanes<T> grad_mixed_summaries;
  Span<float> grad_mixed_key_sums;
  SummaryPlanes<T> grad_summaries;
  Span<float> grad_key_sums;
  Span<float> partial_sums;     // of dm's products
  Span<float> grad_mixing;      // [units, matrices, mix rows, mix columns]
  Span<float> grad_own_mixing;  // [units, matrices, mix rows]: the diagonal's, if it is separate

  SummaryPlan(Arena& arena, const V& attention, const Problem& problem, Index items, bool backward)
      : TablePlan<V, float>(arena, attention, problem, items, strip_width(problem.feature_dim)),
        parts(backward ? backward_parts : forward_parts) {
    const Extents<V>& e = this->extents;
    const auto take_summaries = [&](Index count) {
      const Index size = checked_mul(count, e.summary_size());
      return SummaryPlanes<T>{arena.take<T>(checked_mul(parts, size)).data, size};
    };
    const auto take = [&](bool needed, Index rows, Index dim) {
      return arena.take<float>(needed ? checked_mul(rows, dim) : 0);
    };
    summaries = take_summaries(e.key_summaries());
    key_sums = take(normalizes<V>, e.key_summaries(), e.feature_dim);
    mixed_summaries =
        !backward && mix_in_place(attention, e) ? summaries : take_summaries(e.mixed_summaries());
    mixed_key_sums = take(normalizes<V>, e.mixed_summaries(), e.feature_dim);
    if (!backward) return;

    weights = take(normalizes<V>, e.queries.count(), 1);
    sum_weights = take(normalizes<V>, e.queries.count(), 1);
    own_products = take(masks_own_block<V>, e.queries.count(), 1);
    grad_mixed_summaries = take_summaries(e.mixed_summaries());
    grad_mixed_key_sums = take(normalizes<V>, e.mixed_summaries(), e.feature_dim);
    grad_summaries = take_summaries(e.key_summaries());
    grad_key_sums = take(normalizes<V>, e.key_summaries(), e.feature_dim);
    Index max_partial_sums = 0;
    for_each_sequence_side(attention, e, [&](const Sequence& of_queries, const Sequence& of_keys) {
      max_partial_sums = std::max(
          max_partial_sums, mix_matrix_gradient_partial_sums(mixing_shape(e, of_queries, of_keys)));
    });
    partial_sums = take(true, max_partial_sums, 1);
    grad_mixing = take(true, checked_mul(e.units(), e.matrices), e.mixing_size());
    grad_own_mixing = take(masks_own_block<V>, checked_mul(e.units(), e.matrices), e.mix_rows);
  }

  /// Places the summaries of items [first, ...) in a state, if it has memory: the planes of the
  /// whole batch, as in the backward pass, followed by the key sums.
  void keep_summaries(Index batch, Index first, Span<float> state) {
    if (state.data == nullptr) return;
    static_assert(backward_parts * sizeof(T) == sizeof(float), "planes take the memory of floats");
    const Extents<V>& e = this->extents;
    const Index of_item = e.keys.kv_heads * e.keys.table.blocks;
    const Index plane = batch * of_item * e.summary_size();
    in_state = true;
    summaries = {reinterpret_cast<T*>(state.data) + first * of_item * e.summary_size(), plane};
    if constexpr (normalizes<V>)
      key_sums.data = state.data + plane + first * of_item * e.feature_dim;
  }

  /// Powers of two that scale half's summaries, of key blocks and of their gradients; and 1 / den,
  /// if features are rounded with it.
  float scale() const { return summary_scale<T>(this->extents.keys.table.block_tokens); }
  float gradient_scale() const {
    return normalizes<V> ? 1.0f : summary_scale<T>(this->extents.readers());
  }
  float weight_scale() const { return normalizes<V> ? 1 / scale() : 1.0f; }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
