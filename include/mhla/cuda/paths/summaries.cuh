// SPDX-License-Identifier: MIT
// Runs calls through 16-bit summaries, in parts of the batch: the stages of cublas.cuh, each a
// kernel that reads tokens in place. Summaries have one plane in the forward pass and two in the
// backward pass, which recomputes them unless a forward state has them.
//
//   forward                                        backward
//   key blocks:    S_b, z_b from k and v           the same
//   mixing:        S~_i, z~_i                      the same
//   query blocks:  y from q, and k and v of        1 / den, c and dq; then dS~_i, dz~_i with them
//                  causal blocks
//   mixing:                                        dm_ib += <dS~_i, S_b> + <dz~_i, z_b>;
//                                                  dS_b = sum_i m_ib dS~_i, dz_b likewise
//   key blocks:                                    dk and dv
#pragma once

#include <mhla/cuda/fused/feature_gradient.cuh>
#include <mhla/cuda/fused/mixing_gradient.cuh>
#include <mhla/cuda/fused/readout.cuh>
#include <mhla/cuda/paths/operands.cuh>
#include <mhla/cuda/paths/summaries.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

namespace fused {

/// Summaries, or key sums, of one sequence.
template <class V>
struct SequenceSummaries {
  const Extents<V>& e;
  Sequence queries;
  Sequence keys;
  int planes;
  Index width;  // elements of one

  MixingShape shape() const {
    MixingShape of = mixing_shape(e, queries, keys);
    of.width = width;
    return of;
  }
  auto of_keys(const auto& of) const { return rows(of, keys, e.keys.table.blocks, 1); }
  auto of_queries(const auto& of) const {
    return rows(of, queries, e.queries.table.blocks, e.matrices);
  }

 private:
  template <class Of>
  auto rows(const Of& of, const Sequence& sequence, Index blocks, Index matrices) const {
    const Index row = matrices * width;
    SummaryRows<std::remove_pointer_t<decltype(of.data)>> rows{
        of.data + sequence.first_block * row, planes, 0, blocks * row, row, width};
    if constexpr (requires { of.plane; }) rows.plane_stride = of.plane;
    return rows;
  }
};

/// The stages of a part of the batch, by kernels that are compiled for its head dimensions.
template <class Dims, class V, class T>
struct SummaryPass {
  using Traits =
      KernelTraits<T, typename V::FeatureMapType, rotates<V>, Dims::key_dim, Dims::value_dim>;
  using Of = Operands<V, T, SummaryPlan<V, T>>;
  using OwnKeys = decltype(std::declval<Of>().own_keys(1));
  const Of& of;
  const CudaDevice& device = of.device;
  const SummaryPlan<V, T>& plan = of.plan;
  const Extents<V>& e = plan.extents;

  void forward(const TensorView<T, 4>& y) const {
    // A state is for the backward pass; mixing reads the same as without one.
    if (plan.in_state) {
      summarize_blocks<backward_parts<V>>();
    } else {
      summarize_blocks<forward_parts>();
    }
    mix_blocks();
    read_out_blocks(y);
  }
  /// All wanted gradients except dmix, to whose parts it adds.
  void backward(const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                Update update) const {
    const bool wants_keys = gradients.key.wanted || gradients.value.wanted;
    if (!plan.in_state) summarize_blocks<backward_parts<V>>();
    mix_blocks();
    query_gradient(dy, gradients.query, update);
    if (!gradients.mix.wanted && !wants_keys) return;
    mixed_summary_gradient(dy);
    if (gradients.mix.wanted) mixing_gradient();
    if (!wants_keys) return;
    mix_blocks_gradient();
    key_gradient(dy, gradients.key, gradients.value, update);
  }

 private:
  Sharing of_key_heads() const { return {static_cast<int>(e.keys.kv_heads), 1, 1}; }
  MixingMatrices matrices() const {
    // With summaries from a state, the backward pass begins with mixing.
    const bool is_new = plan.in_state && plan.backward;
    return {plan.mixing.data, e.mixing_size(), e.mix_columns, is_new};
  }
  /// Calls f(summaries, key_sums) for every sequence of a batch item.
  template <class F>
  void for_each_sequence(const F& f) const {
    for_each_sequence_side(of.variant, e, [&](const Sequence& queries, const Sequence& keys) {
      f(SequenceSummaries<V>{e, queries, keys, plan.parts, e.summary_size()},
        SequenceSummaries<V>{e, queries, keys, 1, e.feature_dim});
    });
  }

  /// S_b and z_b of every key block, in `Parts` planes.
  template <int Parts>
  void summarize_blocks() const {
    constexpr KeySums sums = normalizes<V> ? KeySums::plain : KeySums::none;
    summarize(device, e.keys.batch,
              SummarizeBlocks<Traits, Parts, sums>{of.key_features(), of.values(), of_key_heads(),
                                                   nullptr, nullptr, 1.0f, plan.summaries,
                                                   plan.key_sums.data});
  }

  /// z~_i and S~_i of every query block.
  void mix_blocks() const {
    for_each_sequence([&](const auto& s, [[maybe_unused]] const auto& z) {
      if constexpr (normalizes<V>)
        mix_key_sums(device, z.shape(), false, matrices(), z.of_keys(plan.key_sums),
                     z.of_queries(plan.mixed_key_sums));
      mix(device, s.shape(), false, matrices(), s.of_keys(plan.summaries),
          s.of_queries(plan.mixed_summaries));
    });
  }

  /// y of every query.
  void read_out_blocks(const TensorView<T, 4>& y) const {
    run_over_items(device, e.queries.batch,
                   ReadOutBlocks<Traits, normalizes<V>, OwnKeys>{
                       of.query_features(), tokens(y, e.queries.table), of.of_query_heads(),
                       plan.mixed_summaries, plan.mixed_key_sums.data, of.epsilon(),
                       of.own_keys(plan.weight_scale())});
  }

  /// What queries keep for the other gradients; weights, null without a normalizer, are 1 then.
  QueryNumbers query_numbers() const {
    return {plan.weights.data, plan.sum_weights.data, plan.own_products.data};
  }

  /// dq, and what the other gradients need of every query: 1 / den, c, its part of dm_ii.
  void query_gradient(const TensorView<const T, 4>& dy, const GradientView<T, 4>& dq,
                      Update update) const {
    run_over_items(
        device, e.queries.batch,
        FeatureGradient<Traits, backward_parts<V>, Side::queries, normalizes<V>, OwnKeys>{
            of.query_features(), tokens(dy, e.queries.table), tokens(dq.view, e.queries.table),
            dq.wanted, update, of.of_query_heads(), plan.mixed_summaries, plan.mixed_key_sums.data,
            of.epsilon(), query_numbers(), of.own_keys(plan.weight_scale())});
  }

  /// dS~_i and dz~_i of every query block.
  void mixed_summary_gradient(const TensorView<const T, 4>& dy) const {
    constexpr KeySums sums = normalizes<V> ? KeySums::weighted : KeySums::none;
    summarize(device, e.queries.batch,
              SummarizeBlocks<Traits, backward_parts<V>, sums>{
                  of.query_features(), tokens(dy, e.queries.table), of.of_query_heads(),
                  query_numbers().weights, query_numbers().sum_weights, plan.weight_scale(),
                  plan.grad_mixed_summaries, plan.grad_mixed_key_sums.data});
  }

  /// Adds to the units' parts of dmix.
  void mixing_gradient() const {
    const MixingGradients to{plan.grad_mixing.data,
                             plan.grad_mixing.size / plan.splits,
                             e.matrices * e.mixing_size(),
                             e.mixing_size(),
                             e.mix_columns,
                             1 / (plan.summaries.scale * plan.grad_mixed_summaries.scale)};
    for_each_sequence([&](const auto& s, [[maybe_unused]] const auto& z) {
      mix_matrix_gradient<T, backward_parts<V>>(device, s.shape(), plan.splits,
                                                s.of_queries(plan.grad_mixed_summaries),
                                                s.of_keys(plan.summaries), to);
      if constexpr (normalizes<V>) {
        const AddKeySumProducts body{z.shape(), z.of_queries(plan.grad_mixed_key_sums),
                                     z.of_keys(plan.key_sums), to};
        machine::run(device, body.blocks(), body);
      }
    });
    add_own_mixing_gradient(of);
  }

  /// dz_b and dS_b of every key block, as in mix_blocks().
  void mix_blocks_gradient() const {
    for_each_sequence([&](const auto& s, [[maybe_unused]] const auto& z) {
      if constexpr (normalizes<V>)
        mix_key_sums(device, z.shape(), true, matrices(), z.of_queries(plan.grad_mixed_key_sums),
                     z.of_keys(plan.grad_key_sums));
      mix(device, s.shape(), true, matrices(), s.of_queries(plan.grad_mixed_summaries),
          s.of_keys(plan.grad_summaries));
    });
  }

  /// A causal key's own queries, of all heads that share it; nothing in other calls.
  auto own_queries(const TensorView<const T, 4>& dy) const {
    if constexpr (is_causal_within_block<V>) {
      return OwnTokens<T, typename V::FeatureMapType, rotates<V>, Side::queries>{
          of.query_features(),        tokens(dy, e.queries.table), of.mixing(),
          plan.weight_scale(),        e.queries.group_size,        query_numbers().weights,
          query_numbers().sum_weights};
    } else {
      return NoOwnTokens{};
    }
  }

  /// dk and dv.
  void key_gradient(const TensorView<const T, 4>& dy, const GradientView<T, 4>& dk,
                    const GradientView<T, 4>& dv, Update update) const {
    const auto own = own_queries(dy);
    using Own = std::remove_const_t<decltype(own)>;
    run_over_items(device, e.keys.batch,
                   FeatureGradient<Traits, backward_parts<V>, Side::keys, normalizes<V>, Own>{
                       of.key_features(), of.values(), tokens(dk.view, e.keys.table), dk.wanted,
                       update, of_key_heads(), plan.grad_summaries, plan.grad_key_sums.data, 0.0f,
                       ValueGradient<T>{tokens(dv.view, e.keys.table), dv.wanted}, own});
  }
};

}  // namespace fused

template <class Dims, class V, class T>
void SummariesPath::forward(const ForwardCall<V, T>& call) {
  const auto largest = plan_of_parts<Plan<V, T>>(call);
  for_each_part(call, largest, [&](const auto& part, const auto& cut) {
    fused::SummaryPass<Dims, V, T>{part}.forward(cut(call.y));
  });
}

template <class Dims, class V, class T>
void SummariesPath::backward(const BackwardCall<V, T>& call) {
  const auto largest = plan_of_parts<Plan<V, T>>(call);
  run_backward_in_parts(call, largest,
                        [&](const auto& part, const auto& dy, const auto& gradients) {
                          fused::SummaryPass<Dims, V, T>{part}.backward(dy, gradients, call.update);
                        });
}

}  // namespace cuda

MHLA_NAMESPACE_END
