// SPDX-License-Identifier: MIT
// A call over pairs of tokens: forward and backward pass of the whole batch.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/block_mixing.cuh>
#include <mhla/cuda/forward_pass.cuh>
#include <mhla/cuda/fused/operands.cuh>
#include <mhla/cuda/fused/quadratic.cuh>
#include <mhla/cuda/fused/quadratic.hpp>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/fused/quadratic_key_gradient.cuh>
#include <mhla/cuda/fused/quadratic_mixing_gradient.cuh>
#include <mhla/cuda/fused/quadratic_query_gradient.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// A call's operands, and the head dimensions its kernels are compiled for.
template <class V, class T, int key_dim, int value_dim>
struct PairCall : FusedOperands<V, T, PairPlan<V>> {
  using Map = typename V::FeatureMapType;
  static constexpr int KeyDim = key_dim;
  static constexpr int ValueDim = value_dim;
  static constexpr Sight sees = sight_of<V>;
  static constexpr bool divides = normalizes<V>;

  PairOperands<T, Map, rotates<V>> pairs() const {
    return {this->query_features(), this->key_features(),   this->values(),
            this->mixing(),         this->of_query_heads(), is_packed<V>};
  }
};

/// Runs a checked call on the whole batch.
template <class Dims, class V, class T>
void attend_by_pairs(const CudaDevice& device, const V& attention, const Problem& problem,
                     const OperandViews<T>& operands, const TensorView<T, 4>& y,
                     WorkspaceView workspace) {
  using Call = PairCall<V, T, static_cast<int>(Dims::key_dim), static_cast<int>(Dims::value_dim)>;
  Arena arena(workspace);
  const PairPlan<V> plan(arena, attention, problem, problem.shape.batch, false);
  const Call call{{{device, attention, plan, operands.q, operands.k, operands.v, operands.mix}}};
  fill_tables(call);
  attend_pairs(
      device, problem.shape.batch,
      AttendPairs<T, typename Call::Map, rotates<V>, Call::KeyDim, Call::ValueDim, Call::sees,
                  Call::divides>{call.pairs(), tokens(y, plan.extents.queries.table),
                                 Update::overwrite, call.epsilon(), score_scale<T>(Call::KeyDim)});
}

/// All wanted gradients of a checked call.
template <class Dims, class V, class T>
void attend_by_pairs_gradient(const CudaDevice& device, const V& attention, const Problem& problem,
                              const OperandViews<T>& operands, const TensorView<const T, 4>& dy,
                              const GradientViews<T>& gradients, Update update,
                              WorkspaceView workspace) {
  using Call = PairCall<V, T, static_cast<int>(Dims::key_dim), static_cast<int>(Dims::value_dim)>;
  using Map = typename Call::Map;
  Arena arena(workspace);
  const Index items = problem.shape.batch;
  const PairPlan<V> plan(arena, attention, problem, items, true);
  const Extents<V>& e = plan.extents;
  const Call call{{{device, attention, plan, operands.q, operands.k, operands.v, operands.mix}}};
  fill_tables(call);
  const PairGradientOperands<T, Map, rotates<V>> of{
      call.pairs(), tokens(dy, e.queries.table), plan.weights.data, plan.sum_weights.data,
      gradient_scale<T>(Call::KeyDim, problem.key_grid.num_tokens(), Call::divides, Call::sees)};
  query_pairs_gradient(device, items,
                       QueryPairsGradient<T, Map, rotates<V>, Call::KeyDim, Call::ValueDim,
                                          Call::sees, Call::divides>{
                           of, call.epsilon(), tokens(gradients.query.view, e.queries.table),
                           gradients.query.wanted, update});
  key_pairs_gradient(
      device, items,
      KeyPairsGradient<T, Map, rotates<V>, Call::KeyDim, Call::ValueDim, Call::sees, Call::divides>{
          of, tokens(gradients.key.view, e.keys.table), gradients.key.wanted,
          tokens(gradients.value.view, e.keys.table), gradients.value.wanted, update});
  if (gradients.mix.wanted) {
    mixing_pairs_gradient(
        device, items,
        MixingPairsGradient<T, Map, rotates<V>, Call::KeyDim, Call::ValueDim, Call::sees,
                            Call::divides>{of, plan.grad_mixing.data});
    launch(device, gradients.mix.view.size(),
           WriteMixingGradient<float>{
               plan.grad_mixing.data, nullptr, e.matrices == 0 ? 0 : e.units(), e.keys.kv_heads,
               e.matrices, e.mix_rows, e.mix_columns,
               sees_past_only<V> ? Sight::past_blocks : Sight::all, gradients.mix.view, update});
  }
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
