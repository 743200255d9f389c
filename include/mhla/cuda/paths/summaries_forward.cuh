// SPDX-License-Identifier: MIT
// The forward pass of a part of the batch through 16-bit summaries: the stages of
// cuda/forward_pass.cuh, each a kernel that reads tokens in place.
//
//   key blocks:    S_b, z_b from k and v
//   mixing:        S~_i, z~_i
//   query blocks:  y from q, and k and v of causal blocks
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/block_mixing.cuh>
#include <mhla/cuda/forward_pass.cuh>
#include <mhla/cuda/fused/block_mixing.cuh>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/key_sum_mixing.cuh>
#include <mhla/cuda/fused/plan.hpp>
#include <mhla/cuda/fused/readout.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/paths/operands.cuh>
#include <mhla/policy/checks.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// A call's operands, and the head dimensions its kernels are compiled for.
template <class V, class T, int KeyDim, int ValueDim>
struct SummaryCall : FusedOperands<V, T, SummaryPlan<V, T>> {
  /// Summaries of key blocks, and mixed ones or their gradients.
  Summaries<T> summaries(const SummaryPlanes<T>& of, float scale) const {
    return {of.data, of.size, scale};
  }
  Summaries<const T> read_summaries(const SummaryPlanes<T>& of, float scale) const {
    return {of.data, of.size, scale};
  }
  Sharing of_key_heads() const {
    return {static_cast<int>(this->plan.extents.keys.kv_heads), 1, 1};
  }
  MixingMatrices matrices() const {
    const Extents<V>& e = this->plan.extents;
    // With summaries from a state, the backward pass begins with mixing.
    const bool is_new = this->plan.in_state && this->plan.parts == backward_parts;
    return {this->plan.mixing.data, e.mixing_size(), e.mix_columns, is_new};
  }
};

/// S_b and z_b of every key block, in `Parts` planes.
template <int Parts, class V, class T, int KeyDim, int ValueDim>
void summarize_blocks(const SummaryCall<V, T, KeyDim, ValueDim>& call) {
  const SummaryPlan<V, T>& plan = call.plan;
  using Traits = KernelTraits<T, typename V::FeatureMapType, rotates<V>, KeyDim, ValueDim>;
  constexpr KeySums sums = normalizes<V> ? KeySums::plain : KeySums::none;
  summarize(call.device, plan.extents.keys.batch,
            SummarizeBlocks<Traits, Parts, sums>{
                call.key_features(), call.values(), call.of_key_heads(), nullptr, nullptr, 1.0f,
                call.summaries(plan.summaries, plan.scale()), plan.key_sums.data});
}

/// The summaries of a sequence.
template <class V, class T>
struct SequenceSummaries {
  const Extents<V>& extents;
  Sequence queries;
  Sequence keys;
  int parts;

  MixingShape shape() const { return mixing_shape(extents, queries, keys); }
  MixingShape key_sum_shape() const {
    MixingShape shape = mixing_shape(extents, queries, keys);
    shape.width = extents.feature_dim;
    return shape;
  }
  SummaryRows<T> of_keys(const SummaryPlanes<T>& summaries) const {
    const Index size = extents.summary_size();
    return {summaries.data + keys.first_block * size, parts, summaries.size,
            extents.keys.table.blocks * size,         size,  0};
  }
  SummaryRows<T> of_queries(const SummaryPlanes<T>& summaries) const {
    const Index size = extents.summary_size();
    const Index row = extents.matrices * size;
    return {summaries.data + queries.first_block * row, parts, summaries.size,
            extents.queries.table.blocks * row,         row,   size};
  }
  KeySumRows<float> of_keys(Span<float> key_sums) const {
    const Index size = extents.feature_dim;
    return {key_sums.data + keys.first_block * size, extents.keys.table.blocks * size, size, 0};
  }
  KeySumRows<float> of_queries(Span<float> key_sums) const {
    const Index size = extents.feature_dim;
    const Index row = extents.matrices * size;
    return {key_sums.data + queries.first_block * row, extents.queries.table.blocks * row, row,
            size};
  }
};

/// Calls f(summaries) for every sequence of a batch item.
template <class V, class T, int KeyDim, int ValueDim, class F>
void for_each_sequence(const SummaryCall<V, T, KeyDim, ValueDim>& call, F&& f) {
  const Extents<V>& e = call.plan.extents;
  for_each_sequence_side(call.variant, e, [&](const Sequence& queries, const Sequence& keys) {
    f(SequenceSummaries<V, T>{e, queries, keys, call.plan.parts});
  });
}

/// z~_i and S~_i of every query block.
template <class V, class T, int KeyDim, int ValueDim>
void mix_blocks(const SummaryCall<V, T, KeyDim, ValueDim>& call) {
  const SummaryPlan<V, T>& plan = call.plan;
  for_each_sequence(call, [&](const SequenceSummaries<V, T>& s) {
    if constexpr (normalizes<V>)
      mix_key_sums(call.device, s.key_sum_shape(), call.matrices(), s.of_keys(plan.key_sums),
                   s.of_queries(plan.mixed_key_sums));
    mix(call.device, s.shape(), call.matrices(), s.of_keys(plan.summaries),
        s.of_queries(plan.mixed_summaries));
  });
}

/// y of every query.
template <class V, class T, int KeyDim, int ValueDim>
void read_out_blocks(const SummaryCall<V, T, KeyDim, ValueDim>& call, const TensorView<T, 4>& y) {
  const SummaryPlan<V, T>& plan = call.plan;
  using Map = typename V::FeatureMapType;
  const auto own = call.own_keys(plan.weight_scale());
  using Own = std::remove_const_t<decltype(own)>;
  read_out(call.device, plan.extents.queries.batch,
           ReadOutBlocks<KernelTraits<T, Map, rotates<V>, KeyDim, ValueDim>, forward_parts,
                         normalizes<V>, Own>{
               call.query_features(), tokens(y, plan.extents.queries.table), Update::overwrite,
               call.of_query_heads(), call.read_summaries(plan.mixed_summaries, plan.scale()),
               plan.mixed_key_sums.data, call.epsilon(), own});
}

/// All of it.
template <class V, class T, int KeyDim, int ValueDim>
void forward_pass(const SummaryCall<V, T, KeyDim, ValueDim>& call, const TensorView<T, 4>& y) {
  // A state is for the backward pass; mixing reads the same as without one.
  if (call.plan.in_state) {
    summarize_blocks<backward_parts>(call);
  } else {
    summarize_blocks<forward_parts>(call);
  }
  mix_blocks(call);
  read_out_blocks(call, y);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
