// SPDX-License-Identifier: MIT
// Runs calls over pairs of tokens: the whole batch at once.
#pragma once

#include <mhla/cuda/fused/quadratic.cuh>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/paths/operands.cuh>
#include <mhla/cuda/paths/quadratic.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

namespace fused {

/// What kernels over pairs are compiled for, to run a variant's calls.
template <class Dims, class V, class T>
using PairTraitsOf = PairTraits<T, typename V::FeatureMapType, rotates<V>, Dims::key_dim,
                                Dims::value_dim, sight_of<V>, normalizes<V>>;

template <class V, class T>
PairOperands<T, typename V::FeatureMapType, rotates<V>> pair_operands(
    const Operands<V, T, PairPlan<V>>& of) {
  return {of.query_features(), of.key_features(),   of.values(),
          of.mixing(),         of.of_query_heads(), is_packed<V>};
}

}  // namespace fused

template <class Dims, class V, class T>
void QuadraticPath::forward(const ForwardCall<V, T>& call) {
  using Traits = fused::PairTraitsOf<Dims, V, T>;
  for_each_part(call, plan_of_parts<Plan<V, T>>(call), [&](const auto& of, const auto&) {
    fused::run_over_items(
        call.device, of.e.queries.batch,
        fused::AttendPairs<Traits>{pair_operands(of), fused::tokens(call.y, of.e.queries.table),
                                   Update::overwrite, of.epsilon(),
                                   fused::score_scale<T>(Dims::key_dim)});
  });
}

template <class Dims, class V, class T>
void QuadraticPath::backward(const BackwardCall<V, T>& call) {
  using Traits = fused::PairTraitsOf<Dims, V, T>;
  const GradientViews<T>& to = call.gradients;
  for_each_part(call, plan_of_parts<Plan<V, T>>(call), [&](const auto& of, const auto&) {
    const auto& plan = of.plan;
    const BlockTable& queries = of.e.queries.table;
    const BlockTable& keys = of.e.keys.table;
    const fused::PairGradientOperands<Traits> operands{
        pair_operands(of), fused::tokens(call.dy, queries), plan.weights.data,
        plan.sum_weights.data,
        fused::gradient_scale<T>(Dims::key_dim, call.problem.key_grid.num_tokens(), Traits::divides,
                                 Traits::sees)};
    const fused::MixingParts parts{plan.grad_mixing.data, static_cast<int>(plan.runs),
                                   static_cast<int>(call.problem.shape.heads),
                                   static_cast<int>(of.e.mix_columns)};
    if (to.mix.wanted) set_zero(call.device, plan.grad_mixing);
    if (Traits::divides || to.query.wanted || to.mix.wanted)
      fused::run_over_items(call.device, of.e.queries.batch,
                            fused::QueryPairsGradient<Traits>{
                                operands, of.epsilon(), fused::tokens(to.query.view, queries),
                                to.query.wanted, call.update, parts, to.mix.wanted});
    if (to.key.wanted || to.value.wanted)
      fused::run_over_items(call.device, of.e.queries.batch,
                            fused::KeyPairsGradient<Traits>{
                                operands, fused::tokens(to.key.view, keys), to.key.wanted,
                                fused::tokens(to.value.view, keys), to.value.wanted, call.update});
    if (!to.mix.wanted) return;
    if constexpr (is_packed<V>)
      launch(call.device, plan.packed_grad_mixing.size,
             fused::AddSequences{queries, parts, of.e.mix_rows, plan.packed_grad_mixing.data});
    write_mixing_gradient(call, of.e, is_packed<V> ? plan.packed_grad_mixing : plan.grad_mixing,
                          plan.grad_parts, nullptr, 0,
                          is_causal<V> ? Sight::past_blocks : Sight::all, to.mix);
  });
}

}  // namespace cuda

MHLA_NAMESPACE_END
