// SPDX-License-Identifier: MIT
// Runs calls over pairs of tokens: the whole batch at once.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/block_mixing.cuh>
#include <mhla/cuda/call.hpp>
#include <mhla/cuda/forward_pass.cuh>
#include <mhla/cuda/fused/quadratic.cuh>
#include <mhla/cuda/fused/quadratic.hpp>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/fused/quadratic_key_gradient.cuh>
#include <mhla/cuda/fused/quadratic_mixing_gradient.cuh>
#include <mhla/cuda/fused/quadratic_pairs.cuh>
#include <mhla/cuda/fused/quadratic_query_gradient.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/paths/operands.cuh>
#include <mhla/cuda/paths/quadratic.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

namespace fused {

/// A call's operands, and the head dimensions its kernels are compiled for.
template <class V, class T, int key_dim, int value_dim>
struct PairCall : FusedOperands<V, T, PairPlan<V>> {
  using Map = typename V::FeatureMapType;
  using Traits = PairTraits<T, Map, rotates<V>, key_dim, value_dim, sight_of<V>, normalizes<V>>;

  typename Traits::Operands pairs() const {
    return {this->query_features(), this->key_features(),   this->values(),
            this->mixing(),         this->of_query_heads(), is_packed<V>};
  }
};

}  // namespace fused

template <class Dims, class V, class T>
void QuadraticPath::forward(const ForwardCall<V, T>& call) {
  using Pairs =
      fused::PairCall<V, T, static_cast<int>(Dims::key_dim), static_cast<int>(Dims::value_dim)>;
  using Traits = typename Pairs::Traits;
  const OperandViews<T>& of = call.operands;
  const Index items = call.problem.shape.batch;
  Arena arena(call.workspace);
  const fused::PairPlan<V> plan(arena, call.attention, call.problem, items, false);
  const Pairs pairs{{{call.device, call.attention, plan, of.q, of.k, of.v, of.mix}}};
  fill_tables(pairs);
  attend_pairs(call.device, items,
               fused::AttendPairs<Traits>{
                   pairs.pairs(), fused::tokens(call.y, plan.extents.queries.table),
                   Update::overwrite, pairs.epsilon(), fused::score_scale<T>(Traits::key_dim)});
}

template <class Dims, class V, class T>
void QuadraticPath::backward(const BackwardCall<V, T>& call) {
  using Pairs =
      fused::PairCall<V, T, static_cast<int>(Dims::key_dim), static_cast<int>(Dims::value_dim)>;
  using Traits = typename Pairs::Traits;
  const OperandViews<T>& of = call.operands;
  const GradientViews<T>& gradients = call.gradients;
  const Index items = call.problem.shape.batch;
  Arena arena(call.workspace);
  const fused::PairPlan<V> plan(arena, call.attention, call.problem, items, true);
  const Extents<V>& e = plan.extents;
  const Pairs pairs{{{call.device, call.attention, plan, of.q, of.k, of.v, of.mix}}};
  fill_tables(pairs);
  const fused::PairGradientOperands<Traits> operands{
      pairs.pairs(), fused::tokens(call.dy, e.queries.table), plan.weights.data,
      plan.sum_weights.data,
      fused::gradient_scale<T>(Traits::key_dim, call.problem.key_grid.num_tokens(), Traits::divides,
                               Traits::sees)};
  query_pairs_gradient(
      call.device, items,
      fused::QueryPairsGradient<Traits>{operands, pairs.epsilon(),
                                        fused::tokens(gradients.query.view, e.queries.table),
                                        gradients.query.wanted, call.update});
  key_pairs_gradient(
      call.device, items,
      fused::KeyPairsGradient<Traits>{
          operands, fused::tokens(gradients.key.view, e.keys.table), gradients.key.wanted,
          fused::tokens(gradients.value.view, e.keys.table), gradients.value.wanted, call.update});
  if (gradients.mix.wanted) {
    mixing_pairs_gradient(call.device, items,
                          fused::MixingPairsGradient<Traits>{operands, plan.grad_mixing.data});
    launch(
        call.device, gradients.mix.view.size(),
        WriteMixingGradient<float>{plan.grad_mixing.data, nullptr, e.matrices == 0 ? 0 : e.units(),
                                   e.keys.kv_heads, e.matrices, e.mix_rows, e.mix_columns,
                                   sees_past_only<V> ? Sight::past_blocks : Sight::all,
                                   gradients.mix.view, call.update});
  }
}

}  // namespace cuda

MHLA_NAMESPACE_END
