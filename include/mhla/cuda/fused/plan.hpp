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
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/problem.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

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

/// Floats that partial sums of dm's products take.
template <class V>
Index partial_sums_of(const V& variant, const Extents<V>& e) {
  Index most = 0;
  for_each_sequence_side(variant, e, [&](const Sequence& queries, const Sequence& keys) {
    most = (std::max)(most, mix_matrix_gradient_partial_sums(mixing_shape(e, queries, keys)));
  });
  return most;
}

/// Such a call's workspace; `T` is the storage type.
template <class V, class T>
struct SummaryPlan : TablePlan<V, float, true> {
  using Base = TablePlan<V, float, true>;
  using Base::backward;
  using Base::Base;
  using Base::extents;
  using Base::take;
  using Base::take_back;

  int parts = backward ? backward_parts<V> : forward_parts;  // planes of every summary
  bool in_state = false;  // summaries and key sums lie in a forward state
  Index feature_dim = extents.feature_dim;
  Index query_rows = extents.queries.count();
  Index grad_parts = checked_mul(extents.units(), extents.matrices);  // of dmix

  Summaries<T> summaries = take_summaries(extents.key_summaries(), scale());
  Span<float> key_sums = take(extents.key_summaries(), feature_dim, normalizes<V>);
  /// The forward pass, which does not need summaries once they are mixed, overwrites them if the
  /// kernel can.
  Summaries<T> mixed_summaries = !backward && mix_in_place(this->variant, extents)
                                     ? summaries
                                     : take_summaries(extents.mixed_summaries(), scale());
  Span<float> mixed_key_sums = take(extents.mixed_summaries(), feature_dim, normalizes<V>);

  // Backward pass only. Of every query: 1 / den, c / r, its part of dm_ii.
  Span<float> weights = take_back(query_rows, 1, normalizes<V>);
  Span<float> sum_weights = take_back(query_rows, 1, normalizes<V>);
  Span<float> own_products = take_back(query_rows, 1, is_causal_within_block<V>);
  Summaries<T> grad_mixed_summaries =
      take_summaries(backward ? extents.mixed_summaries() : 0, gradient_scale());
  Span<float> grad_mixed_key_sums =
      take_back(extents.mixed_summaries(), feature_dim, normalizes<V>);
  Summaries<T> grad_summaries =
      take_summaries(backward ? extents.key_summaries() : 0, gradient_scale());
  Span<float> grad_key_sums = take_back(extents.key_summaries(), feature_dim, normalizes<V>);
  Span<float> partial_sums = take(backward ? partial_sums_of(this->variant, extents) : 0, 1);
  Span<float> grad_mixing = take_back(grad_parts, extents.mixing_size());
  // The diagonal's, if it is separate.
  Span<float> grad_own_mixing = take_back(grad_parts, extents.mix_rows, is_causal_within_block<V>);

  /// A backward pass has so many kernels that launching more of them takes what the cache saves.
  static constexpr bool gains_by_cache(bool of_backward) { return !of_backward; }
  /// [parts, count, feature_dim, value_dim]
  Summaries<T> take_summaries(Index count, float scale_of) {
    const Index size = checked_mul(count, extents.summary_size());
    return {this->arena.template take<T>(checked_mul(parts, size)).data, size, scale_of};
  }

  /// Places the summaries of items [first, ...) in a state, if it has memory: the planes of the
  /// whole batch, as in the backward pass, followed by the key sums.
  void keep_summaries(Index batch, Index first, Span<float> state) {
    if (state.data == nullptr) return;
    static_assert(2 * sizeof(T) == sizeof(float), "planes take at most the memory of floats");
    const Index of_item = extents.keys.kv_heads * extents.keys.table.blocks;
    const Index size = extents.summary_size();
    const Index plane = batch * of_item * size;
    in_state = true;
    summaries = {reinterpret_cast<T*>(state.data) + first * of_item * size, plane, scale()};
    if constexpr (normalizes<V>) key_sums.data = state.data + plane + first * of_item * feature_dim;
  }

  /// Powers of two that scale half's summaries, of key blocks and of their gradients; and 1 / den,
  /// if features are rounded with it.
  float scale() const { return summary_scale<T>(extents.keys.table.block_tokens); }
  float gradient_scale() const {
    return normalizes<V> ? 1.0f : summary_scale<T>(extents.readers());
  }
  float weight_scale() const { return normalizes<V> ? 1 / scale() : 1.0f; }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
