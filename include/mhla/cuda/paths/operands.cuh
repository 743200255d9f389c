// SPDX-License-Identifier: MIT
// A call's operands as the paths take them: parts of the batch, and what fused kernels read.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/cuda/batch_part.hpp>
#include <mhla/cuda/forward_pass.cuh>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/own_tokens.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/plan.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Calls f(operands, first, count) for the parts of the batch of a forward or backward call;
/// `whole` is the plan of the largest.
template <class V, class T, class PlanType, class Call, class F>
void for_each_part(const Call& call, const PlanType& whole, Index at_once, const F& f) {
  const OperandViews<T>& of = call.operands;
  const Index batch = call.problem.shape.batch;
  for (Index first = 0; first < batch; first += at_once) {
    const Index count = std::min(at_once, batch - first);
    PlanType plan = plan_of_items(whole, first, count);
    plan.keep_summaries(batch, first, call.state);
    const Operands<V, T, PlanType> part{call.device,
                                        call.attention,
                                        plan,
                                        items(of.q, first, count),
                                        items(of.k, first, count),
                                        items(of.v, first, count),
                                        of.mix};
    if (first == 0) fill_tables(part);
    f(part, first, count);
  }
}

namespace fused {

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
    return {static_cast<int>(e.queries.kv_heads), static_cast<int>(e.queries.group_size),
            static_cast<int>(e.matrices)};
  }
  MixingWeights mixing() const {
    const Extents<V>& e = this->plan.extents;
    return {this->plan.mixing.data, static_cast<int>(e.mix_heads), static_cast<int>(e.mix_rows),
            static_cast<int>(e.mix_columns)};
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

}  // namespace fused

}  // namespace cuda

MHLA_NAMESPACE_END
