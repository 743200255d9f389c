// SPDX-License-Identifier: MIT
// A call's operands as fused kernels of every path take them.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/cuda/forward_pass.cuh>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/own_tokens.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/plan.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// The operands of a part of the batch, and its plan.
template <class V, class T, class PlanType>
struct FusedOperands : Operands<V, T, PlanType> {
  using Map = typename V::FeatureMapType;
  using Features = FeatureTokens<T, Map, rotates<V>>;

  Features query_features() const {
    return {tokens(this->q, this->plan.extents.queries.table), this->variant.feature_map,
            this->scale(), this->plan.rotation};
  }
  Features key_features() const {
    return {tokens(this->k, this->plan.extents.keys.table), this->variant.feature_map, 1.0f,
            this->plan.rotation};
  }
  Tokens<const T> values() const { return tokens(this->v, this->plan.extents.keys.table); }
  Sharing of_query_heads() const {
    const Extents<V>& e = this->plan.extents;
    return {e.queries.kv_heads, e.queries.group_size, e.matrices};
  }
  MixingWeights mixing() const {
    const Extents<V>& e = this->plan.extents;
    return {this->plan.mixing.data, e.mix_heads, e.mix_rows, e.mix_columns};
  }
  /// A causal query's own keys, whose weights are scaled by a power of two; empty in other calls.
  auto own_keys(float weight_scale) const {
    if constexpr (masks_own_block<V>) {
      return OwnTokens<T, Map, rotates<V>>{key_features(), values(), mixing(), weight_scale};
    } else {
      return NoOwnTokens{};
    }
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
