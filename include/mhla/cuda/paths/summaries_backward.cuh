// SPDX-License-Identifier: MIT
// The backward pass of a part of the batch through 16-bit summaries of two planes: the adjoints of
// forward_pass.cuh's stages, and the summaries recomputed.
//
//   key blocks:    S_b, z_b, unless a forward state has them
//   mixing:        S~_i, z~_i
//   query blocks:  1 / den, c and dq; then dS~_i, dz~_i with them
//   mixing:        dm_ib += <dS~_i, S_b> + <dz~_i, z_b>; dS_b = sum_i m_ib dS~_i, dz_b likewise
//   key blocks:    dv, dk
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/backward_pass.cuh>
#include <mhla/cuda/fused/feature_gradient.cuh>
#include <mhla/cuda/fused/mixing_gradient.cuh>
#include <mhla/cuda/paths/summaries_forward.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// What queries keep for the other gradients; weights are 1 without a normalizer.
template <class V, class T, int KeyDim, int ValueDim>
QueryNumbers query_numbers(const SummaryCall<V, T, KeyDim, ValueDim>& call) {
  const SummaryPlan<V, T>& plan = call.plan;
  if constexpr (!normalizes<V>) return {nullptr, nullptr, plan.own_products.data};
  return {plan.weights.data, plan.sum_weights.data, plan.own_products.data};
}

/// dq, and what the other gradients need of every query: 1 / den, c, its part of dm_ii.
template <class V, class T, int KeyDim, int ValueDim>
void query_gradient(const SummaryCall<V, T, KeyDim, ValueDim>& call,
                    const BackwardRequest<V, T>& request) {
  const SummaryPlan<V, T>& plan = call.plan;
  const BlockTable& table = plan.extents.queries.table;
  using Map = typename V::FeatureMapType;
  const auto own = call.own_keys(plan.weight_scale());
  using Own = std::remove_const_t<decltype(own)>;
  feature_gradient(
      call.device, plan.extents.queries.batch,
      FeatureGradient<KernelTraits<T, Map, rotates<V>, KeyDim, ValueDim>, backward_parts,
                      Side::queries, normalizes<V>, Own>{
          call.query_features(), tokens(request.dy, table),
          tokens(request.gradients.query.view, table), request.query(), request.update,
          call.of_query_heads(), call.read_summaries(plan.mixed_summaries, plan.scale()),
          plan.mixed_key_sums.data, call.epsilon(), query_numbers(call), own});
}

/// dS~_i and dz~_i of every query block.
template <class V, class T, int KeyDim, int ValueDim>
void mixed_summary_gradient(const SummaryCall<V, T, KeyDim, ValueDim>& call,
                            const TensorView<const T, 4>& dy) {
  const SummaryPlan<V, T>& plan = call.plan;
  using Traits = KernelTraits<T, typename V::FeatureMapType, rotates<V>, KeyDim, ValueDim>;
  constexpr KeySums sums = normalizes<V> ? KeySums::weighted : KeySums::none;
  summarize(
      call.device, plan.extents.queries.batch,
      SummarizeBlocks<Traits, backward_parts, sums>{
          call.query_features(), tokens(dy, plan.extents.queries.table), call.of_query_heads(),
          query_numbers(call).weights, query_numbers(call).sum_weights, plan.weight_scale(),
          call.summaries(plan.grad_mixed_summaries, plan.gradient_scale()),
          plan.grad_mixed_key_sums.data});
}

/// Adds to the units' parts of dmix.
template <class V, class T, int KeyDim, int ValueDim>
void mixing_gradient(const SummaryCall<V, T, KeyDim, ValueDim>& call) {
  const SummaryPlan<V, T>& plan = call.plan;
  const Extents<V>& e = plan.extents;
  const MixingGradients to{plan.grad_mixing.data, e.matrices * e.mixing_size(), e.mixing_size(),
                           e.mix_columns, 1 / (plan.scale() * plan.gradient_scale())};
  for_each_sequence(call, [&](const SequenceSummaries<V, T>& s) {
    mix_matrix_gradient<T>(call.device, s.shape(), s.of_queries(plan.grad_mixed_summaries),
                           s.of_keys(plan.summaries), plan.partial_sums.data, to, Into::add);
    if constexpr (normalizes<V>)
      add_key_sum_products(call.device, s.key_sum_shape(), s.of_queries(plan.grad_mixed_key_sums),
                           s.of_keys(plan.key_sums), to);
  });
  if constexpr (masks_own_block<V>)
    launch(call.device, e.units() * e.matrices * e.mix_rows,
           AddOwnMixingGradient<float>{e.queries, plan.own_products.data, e.matrices, e.mix_rows,
                                       plan.grad_own_mixing.data});
}

/// dz_b and dS_b of every key block, as in mix_blocks().
template <class V, class T, int KeyDim, int ValueDim>
void mix_blocks_gradient(const SummaryCall<V, T, KeyDim, ValueDim>& call) {
  const SummaryPlan<V, T>& plan = call.plan;
  for_each_sequence(call, [&](const SequenceSummaries<V, T>& s) {
    if constexpr (normalizes<V>)
      mix_key_sum_gradient(call.device, s.key_sum_shape(), call.matrices(),
                           s.of_queries(plan.grad_mixed_key_sums), s.of_keys(plan.grad_key_sums));
    mix_summary_gradient<T>(call.device, s.shape(), call.matrices(),
                            s.of_queries(plan.grad_mixed_summaries),
                            s.of_keys(plan.grad_summaries));
  });
}

/// A causal key's own queries, of all heads that share it; nothing in other calls.
template <class V, class T, int KeyDim, int ValueDim>
auto own_queries(const SummaryCall<V, T, KeyDim, ValueDim>& call,
                 const TensorView<const T, 4>& dy) {
  if constexpr (masks_own_block<V>) {
    const SummaryPlan<V, T>& plan = call.plan;
    return OwnQueries<T, typename V::FeatureMapType, rotates<V>>{
        call.query_features(),
        tokens(dy, plan.extents.queries.table),
        call.mixing(),
        plan.weight_scale(),
        plan.extents.queries.group_size,
        query_numbers(call).weights,
        query_numbers(call).sum_weights};
  } else {
    return NoOwnTokens{};
  }
}

/// dv
template <class V, class T, int KeyDim, int ValueDim>
void value_gradient(const SummaryCall<V, T, KeyDim, ValueDim>& call,
                    const BackwardRequest<V, T>& request) {
  const SummaryPlan<V, T>& plan = call.plan;
  using Map = typename V::FeatureMapType;
  const auto own = own_queries(call, request.dy);
  using Own = std::remove_const_t<decltype(own)>;
  read_out(
      call.device, plan.extents.keys.batch,
      ReadOutBlocks<KernelTraits<T, Map, rotates<V>, KeyDim, ValueDim>, backward_parts, false, Own>{
          call.key_features(), tokens(request.gradients.value.view, plan.extents.keys.table),
          request.update, call.of_key_heads(),
          call.read_summaries(plan.grad_summaries, plan.gradient_scale()), nullptr, 0.0f, own});
}

/// dk
template <class V, class T, int KeyDim, int ValueDim>
void key_gradient(const SummaryCall<V, T, KeyDim, ValueDim>& call,
                  const BackwardRequest<V, T>& request) {
  const SummaryPlan<V, T>& plan = call.plan;
  using Map = typename V::FeatureMapType;
  const auto own = own_queries(call, request.dy);
  using Own = std::remove_const_t<decltype(own)>;
  feature_gradient(
      call.device, plan.extents.keys.batch,
      FeatureGradient<KernelTraits<T, Map, rotates<V>, KeyDim, ValueDim>, backward_parts,
                      Side::keys, normalizes<V>, Own>{
          call.key_features(), call.values(),
          tokens(request.gradients.key.view, plan.extents.keys.table), true, request.update,
          call.of_key_heads(), call.read_summaries(plan.grad_summaries, plan.gradient_scale()),
          plan.grad_key_sums.data, 0.0f, QueryNumbers{}, own});
}

/// All wanted gradients except dmix, to whose parts it adds.
template <class V, class T, int KeyDim, int ValueDim>
void backward_pass(const SummaryCall<V, T, KeyDim, ValueDim>& call,
                   const BackwardRequest<V, T>& request) {
  if (!call.plan.in_state) summarize_blocks<backward_parts>(call);
  mix_blocks(call);
  query_gradient(call, request);
  if (!request.mixing() && !request.keys()) return;
  mixed_summary_gradient(call, request.dy);
  if (request.mixing()) mixing_gradient(call);
  if (!request.keys()) return;
  mix_blocks_gradient(call);
  if (request.gradients.value.wanted) value_gradient(call, request);
  if (request.gradients.key.wanted) key_gradient(call, request);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
