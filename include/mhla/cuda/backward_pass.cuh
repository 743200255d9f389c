// SPDX-License-Identifier: MIT
// The backward pass of a part of the batch: the adjoints of forward_pass.cuh's stages in reverse
// order.
//
//   query blocks:  U = dy / den -> dS~_i, dQ^r, c -> dz~_i, dq
//                  (Causal: and what the own block's queries send back to dK^r, dV and dm_ii)
//   mixing:        dm_ib += <dS~_i, S_b> + <dz~_i, z_b>; dS_b = sum_i m_ib dS~_i, dz_b likewise
//   key blocks:    dk, dv
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/batch_part.hpp>
#include <mhla/cuda/forward_pass.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Which gradients are wanted, and what they need.
template <class V, class T>
struct BackwardRequest {
  TensorView<const T, 4> dy;
  GradientViews<T> gradients;
  Update update;

  bool query() const { return gradients.query.wanted; }
  bool keys() const { return gradients.key.wanted || gradients.value.wanted; }
  bool mixing() const { return gradients.mix.wanted; }
};

/// The same for items [first, first + count) of the batch.
template <class V, class T>
BackwardRequest<V, T> part_of(BackwardRequest<V, T> request, Index first, Index count) {
  request.dy = items(request.dy, first, count);
  GradientViews<T>& gradients = request.gradients;
  gradients.query.view = items(gradients.query.view, first, count);
  gradients.key.view = items(gradients.key.view, first, count);
  gradients.value.view = items(gradients.value.view, first, count);
  return request;
}

/// U, dS~_i, dQ^r and c; under Causal the own block's part of dK^r, dV and dm_ii.
template <class V, class T>
void read_out_blocks_gradient(const Operands<V, T>& operands, const TensorView<const T, 4>& dy) {
  using A = Accumulator<T>;
  const CudaDevice& device = operands.device;
  const Plan<V, A>& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  gather(device, e.queries, dy, plan.outputs.data,
         normalizes<V> ? plan.denominators.data : nullptr);
  const Panels<A> rotated = query_panels(e, plan.rotated_queries, e.feature_dim);
  const Panels<A> u = query_panels(e, plan.outputs, e.value_dim);
  read_out_summary_gradient(device, rotated, u, mixed_summary_panels(e, plan.grad_mixed_summaries));
  read_out_query_gradient(device, u, mixed_summary_panels(e, plan.mixed_summaries),
                          query_panels(e, plan.grad_queries, e.feature_dim));
  if constexpr (masks_own_block<V>) {
    const Panels<A> grad_keys = key_panels(e, plan.grad_keys, e.feature_dim);
    const Panels<A> grad_values = key_panels(e, plan.grad_values, e.value_dim);
    clear(device, grad_keys);
    clear(device, grad_values);
    read_out_own_block_gradient(device, own_weights(plan), plan.rotated_queries.data,
                                plan.outputs.data, key_panels(e, plan.rotated_keys, e.feature_dim),
                                key_panels(e, plan.values, e.value_dim), plan.scores.data,
                                plan.grad_scores.data,
                                OwnBlockGradients<A>{plan.grad_queries.data, grad_keys, grad_values,
                                                     plan.own_products.data});
  }
  if constexpr (normalizes<V>)
    launch(device, e.queries.count(),
           DenominatorGradient<A>{RowFinder(e.queries), plan.rotated_queries.data,
                                  plan.grad_queries.data, e.feature_dim, plan.denominators.data,
                                  plan.grad_denominators.data});
}

/// Whether own blocks add to the gradients of features: to those that are otherwise finished.
template <class V>
inline constexpr bool adds_own_key_sums = masks_own_block<V>&& mixes_key_sums<V>;

/// dQ, before it is rotated back and the denominators add to it.
template <class V, class T>
FeatureGradientRows<Accumulator<T>> queries_gradient(const Operands<V, T>& operands) {
  const auto& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  FeatureGradientRows<Accumulator<T>> of{
      e.queries, plan.grad_queries.data, e.feature_dim, plan.rotation, {}};
  if constexpr (mixes_key_sums<V>)
    of.added = {Divisor(e.readers()), plan.grad_denominators.data, plan.mixed_key_sums.data};
  if constexpr (mixes_products<V>)
    of.added = {Divisor(e.queries.of_block()), plan.grad_products.data, plan.key_sums.data};
  return of;
}
/// dK likewise.
template <class V, class T>
FeatureGradientRows<Accumulator<T>> keys_gradient(const Operands<V, T>& operands) {
  const auto& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  return {e.keys,
          plan.grad_keys.data,
          e.feature_dim,
          plan.rotation,
          {Divisor(e.keys.of_block()), nullptr, normalizes<V> ? plan.grad_key_sums.data : nullptr}};
}
/// The rest of a gradient's way to q or k.
template <class V, class T>
void unpack_gradient(const Operands<V, T>& operands, FeatureGradientRows<Accumulator<T>> of,
                     Accumulator<T> scale, const TensorView<const T, 4>& x,
                     const TensorView<T, 4>& gradient, Update update) {
  if constexpr (adds_own_key_sums<V>) of.added = {};  // finished
  unpack_feature_gradient<rotates<V> && !adds_own_key_sums<V>>(
      operands.device, operands.variant.feature_map, scale, of, x, gradient, update,
      RowBuffers<Accumulator<T>>{operands.plan.row_input, operands.plan.grad_row});
}

/// dz~_i or, under MixedProduct, dz_b; and dQ, where own blocks add to it.
template <class V, class T>
void denominators_gradient(const Operands<V, T>& operands) {
  using A = Accumulator<T>;
  const CudaDevice& device = operands.device;
  const Plan<V, A>& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  if constexpr (mixes_key_sums<V>) {
    weighted_row_sums(device, query_panels(e, plan.queries, e.feature_dim),
                      plan.grad_denominators.data, plan.grad_mixed_key_sums.data);
    if constexpr (adds_own_key_sums<V>) {
      queries_gradient(operands).template finish<rotates<V>>(device);
      launch(device, e.queries.count(),
             AddOwnKeySumQueryGradient<A>{own_weights(plan), plan.queries.data,
                                          plan.running_key_sums.data, plan.grad_denominators.data,
                                          e.feature_dim, plan.grad_queries.data,
                                          plan.own_products.data});
    }
  } else if constexpr (mixes_products<V>) {
    for_each_mixing(operands.variant, e, [&](const Mixing<V>& m) {
      for (Index g = m.first_head(); g < m.end_head(); ++g)
        mixed_product_gradient(device, m.matrix_of(plan.mixing),
                               m.queries_of(plan.grad_denominators, g),
                               m.queries_of(plan.grad_products, g));
    });
    weighted_row_sums(
        device, panels(plan.queries.data, e.key_summaries(), e.queries.of_block(), e.feature_dim),
        plan.grad_products.data, plan.grad_key_sums.data);
  }
}

/// Adds to the units' parts of dmix.
template <class V, class T>
void mixing_gradient(const Operands<V, T>& operands) {
  using A = Accumulator<T>;
  const CudaDevice& device = operands.device;
  const Plan<V, A>& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  for_each_mixing(operands.variant, e, [&](const Mixing<V>& m) {
    const auto add = [&](Span<A> grad_mixed, Span<A> from, Index size) {
      mix_matrix_gradient(device, m.query_blocks(grad_mixed, size), m.key_blocks(from, size),
                          m.gradient(plan.grad_mixing), Into::add);
    };
    add(plan.grad_mixed_summaries, plan.summaries, e.summary_size());
    if constexpr (mixes_key_sums<V>) add(plan.grad_mixed_key_sums, plan.key_sums, e.feature_dim);
    if constexpr (mixes_products<V>)
      for (Index g = m.first_head(); g < m.end_head(); ++g)
        mixed_product_matrix_gradient(device, m.queries_of(plan.grad_denominators, g),
                                      m.queries_of(plan.products, g), m.gradient(plan.grad_mixing));
  });
  if constexpr (masks_own_block<V>)
    launch(device, e.units() * e.matrices * e.mix_rows,
           AddOwnMixingGradient<A>{e.queries, plan.own_products.data, e.matrices, e.mix_rows,
                                   plan.grad_own_mixing.data});
}

/// dS_b and dz_b of every key block.
template <class V, class T>
void mix_blocks_gradient(const Operands<V, T>& operands) {
  using A = Accumulator<T>;
  const Plan<V, A>& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  if (e.matrices == 0) {  // no query head reads a kv head
    clear(operands.device, plan.grad_summaries);
    clear(operands.device, plan.grad_key_sums);
  }
  for_each_mixing(operands.variant, e, [&](const Mixing<V>& m) {
    const auto mix_rows = [&](Span<A> from, Span<A> to, Index size) {
      mix_summary_gradient(operands.device, sight_of<V>, m.matrix_of(plan.mixing),
                           m.query_blocks(from, size), m.key_blocks(to, size),
                           m.matrix == 0 ? Into::overwrite : Into::add);
    };
    mix_rows(plan.grad_mixed_summaries, plan.grad_summaries, e.summary_size());
    if constexpr (mixes_key_sums<V>)
      mix_rows(plan.grad_mixed_key_sums, plan.grad_key_sums, e.feature_dim);
  });
}

/// dk and dv.
template <class V, class T>
void summarize_blocks_gradient(const Operands<V, T>& operands,
                               const BackwardRequest<V, T>& request) {
  using A = Accumulator<T>;
  const CudaDevice& device = operands.device;
  const Plan<V, A>& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  const Panels<A> grad_summaries = key_summary_panels(e, plan.grad_summaries);
  // The own blocks' contributions are already there.
  const Into into = masks_own_block<V> ? Into::add : Into::overwrite;
  if (request.gradients.value.wanted) {
    summarize_value_gradient(device, key_panels(e, plan.rotated_keys, e.feature_dim),
                             grad_summaries, key_panels(e, plan.grad_values, e.value_dim), into);
    scatter<T, A>(device, e.keys, plan.grad_values.data, request.gradients.value.view,
                  request.update);
  }
  if (!request.gradients.key.wanted) return;
  const Panels<A> grad_keys = key_panels(e, plan.grad_keys, e.feature_dim);
  summarize_key_gradient(device, key_panels(e, plan.values, e.value_dim), grad_summaries, grad_keys,
                         into);
  const auto rows = keys_gradient(operands);
  if constexpr (adds_own_key_sums<V>) {
    rows.template finish<rotates<V>>(device);
    launch(device, grad_keys.count * grad_keys.cols,
           AddOwnKeySumKeyGradient<A>{own_weights(plan), plan.queries.data,
                                      plan.grad_denominators.data, grad_keys});
  }
  unpack_gradient(operands, rows, A(1), operands.k, request.gradients.key.view, request.update);
}

/// All wanted gradients except dmix, to whose parts it adds.
template <class V, class T>
void backward_pass(const Operands<V, T>& operands, const BackwardRequest<V, T>& request) {
  read_out_blocks_gradient(operands, request.dy);
  denominators_gradient(operands);
  if (request.query())
    unpack_gradient(operands, queries_gradient(operands), operands.scale(), operands.q,
                    request.gradients.query.view, request.update);
  if (request.mixing()) mixing_gradient(operands);
  if (!request.keys()) return;
  mix_blocks_gradient(operands);
  summarize_blocks_gradient(operands, request);
}

/// dmix, from the parts of all units of all items; in causal calls the own blocks' part of the
/// diagonal is separate.
template <class A, class PlanType>
void write_mixing_gradient(const CudaDevice& device, const PlanType& plan, Sight sight,
                           const TensorView<A, 3>& destination, Update update) {
  const auto& e = plan.extents;
  const bool own_apart = sight == Sight::past_tokens;
  launch(
      device, destination.size(),
      WriteMixingGradient<A>{plan.grad_mixing.data, own_apart ? plan.grad_own_mixing.data : nullptr,
                             e.matrices == 0 ? 0 : e.units(), e.keys.kv_heads, e.matrices,
                             e.mix_rows, e.mix_columns, sight, destination, update});
}

}  // namespace cuda

MHLA_NAMESPACE_END
