// SPDX-License-Identifier: MIT
// The forward pass of a part of the batch, all units at once:
//
//   key blocks:    pack phi(k), v -> summaries S_b, key sums z_b
//   mixing:        S~_i, z~_i
//   query blocks:  pack phi(q) -> numerators, denominators -> y
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/block_mixing.cuh>
#include <mhla/cuda/block_summary.cuh>
#include <mhla/cuda/intra_block.cuh>
#include <mhla/cuda/mixed_product.cuh>
#include <mhla/cuda/plan.hpp>
#include <mhla/cuda/readout.cuh>
#include <mhla/cuda/tables.cuh>
#include <mhla/cuda/token_block.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// The operands of a part of the batch, and its plan.
template <class V, class T, class PlanType = Plan<V, Accumulator<T>>>
struct Operands {
  using A = Accumulator<T>;
  const CudaDevice& device;
  const V& variant;
  const PlanType& plan;
  TensorView<const T, 4> q;
  TensorView<const T, 4> k;
  TensorView<const T, 4> v;
  TensorView<const A, 3> mix;

  A scale() const { return static_cast<A>(variant.scale); }
  A epsilon() const {
    if constexpr (normalizes<V>) {
      return static_cast<A>(variant.normalizer.epsilon);
    } else {
      return A(0);
    }
  }
};

/// Rows of all key blocks, one block per panel.
template <class V, class A>
Panels<A> key_panels(const Extents<V>& e, Span<A> rows, Index dim) {
  return panels(rows.data, e.key_summaries(), e.keys.table.block_tokens, dim);
}
/// Rows of all query blocks, those that read one mixed summary per panel.
template <class V, class A>
Panels<A> query_panels(const Extents<V>& e, Span<A> rows, Index dim) {
  return panels(rows.data, e.mixed_summaries(), e.readers(), dim);
}
/// Summaries of key blocks, and mixed ones of query blocks, one per panel.
template <class V, class A>
Panels<A> key_summary_panels(const Extents<V>& e, Span<A> summaries) {
  return panels(summaries.data, e.key_summaries(), e.feature_dim, e.value_dim);
}
template <class V, class A>
Panels<A> mixed_summary_panels(const Extents<V>& e, Span<A> summaries) {
  return panels(summaries.data, e.mixed_summaries(), e.feature_dim, e.value_dim);
}

/// The units that one matrix of mix mixes for, and one of their sequences.
template <class V>
struct Mixing {
  const Extents<V>& extents;
  Index head;  // of mix
  Index matrix;
  Index first_unit;
  Index units;
  Index unit_step;
  Sequence queries;
  Sequence keys;

  template <class A>
  Panels<const A> matrix_of(Span<A> mixing) const {
    return {mixing.data + head * extents.mixing_size(),
            units,
            queries.blocks,
            keys.blocks,
            extents.mix_columns,
            0};
  }
  /// Something of every key block, one block per row.
  template <class A>
  Panels<A> key_blocks(Span<A> of_blocks, Index size) const {
    const Index blocks = extents.keys.table.blocks;
    return {of_blocks.data + (first_unit * blocks + keys.first_block) * size,
            units,
            keys.blocks,
            size,
            size,
            unit_step * blocks * size};
  }
  /// Something of every query block and matrix, one block per row.
  template <class A>
  Panels<A> query_blocks(Span<A> of_blocks, Index size) const {
    const Index row = extents.matrices * size;
    const Index blocks = extents.queries.table.blocks;
    return {of_blocks.data + (first_unit * blocks + queries.first_block) * row + matrix * size,
            units,
            queries.blocks,
            size,
            row,
            unit_step * blocks * row};
  }
  /// A number of every query of query head g, one block per row.
  template <class A>
  Panels<A> queries_of(Span<A> rows, Index g) const {
    const PanelRows& of = extents.queries;
    return {rows.data + first_unit * of.of_unit() + g * of.table.block_tokens,
            units,
            of.table.blocks,
            of.table.block_tokens,
            of.of_block(),
            unit_step * of.of_unit()};
  }
  /// The units' parts of dmix.
  template <class A>
  Panels<A> gradient(Span<A> parts) const {
    const Index size = extents.mixing_size();
    return {parts.data + (first_unit * extents.matrices + matrix) * size,
            units,
            queries.blocks,
            keys.blocks,
            extents.mix_columns,
            unit_step * extents.matrices * size};
  }
  /// Query heads of a kv head that the matrix mixes for: [first_head, end_head).
  Index first_head() const { return extents.matrices == 1 ? 0 : matrix; }
  Index end_head() const { return extents.matrices == 1 ? extents.queries.group_size : matrix + 1; }
};

/// Calls f(mixing) for every matrix of mix and every sequence.
template <class V, class F>
void for_each_mixing(const V& variant, const Extents<V>& e, F&& f) {
  const bool shared = e.mix_heads == 1;
  const Index group_size = e.queries.group_size;
  if (group_size == 0) return;
  for (Index head = 0; head < e.mix_heads; ++head)
    for_each_sequence(variant, e.queries.table.grid, [&](const Sequence& queries) {
      Sequence keys = queries;
      if constexpr (!is_packed<V>) keys.blocks = e.keys.table.blocks;
      f(Mixing<V>{e, head, shared ? 0 : head % group_size, shared ? 0 : head / group_size,
                  shared ? e.units() : e.queries.batch, shared ? 1 : e.queries.kv_heads, queries,
                  keys});
    });
}

/// The tables of a call.
template <class V, class T, class PlanType>
void fill_tables(const Operands<V, T, PlanType>& operands) {
  const PlanType& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  fill_tables(operands.device, operands.variant, e.queries.table, e.keys.table, plan.rotation,
              PackMixing<Accumulator<T>>{operands.mix, e.mix_rows, e.mix_columns, plan.mixing});
}

/// K, K^r and V of every key block.
template <class V, class T>
void pack_keys(const Operands<V, T>& operands) {
  using A = Accumulator<T>;
  const CudaDevice& device = operands.device;
  const Plan<V, A>& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  pack_features<rotates<V>>(device, operands.variant.feature_map, A(1), e.keys, plan.rotation,
                            operands.k, e.feature_dim, plan.keys.data, plan.rotated_keys.data,
                            RowBuffers<A>{plan.row_input, plan.grad_row});
  gather(device, e.keys, operands.v, plan.values.data);
}

/// S_b and z_b of every key block.
template <class V, class T>
void summarize_blocks(const Operands<V, T>& operands) {
  using A = Accumulator<T>;
  const CudaDevice& device = operands.device;
  const Plan<V, A>& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  summarize(device, key_panels(e, plan.rotated_keys, e.feature_dim),
            key_panels(e, plan.values, e.value_dim), key_summary_panels(e, plan.summaries));
  if constexpr (normalizes<V>)
    sum_keys(device, key_panels(e, plan.keys, e.feature_dim), plan.key_sums.data);
}

/// S~_i and z~_i of every query block.
template <class V, class T>
void mix_blocks(const Operands<V, T>& operands) {
  using A = Accumulator<T>;
  const Plan<V, A>& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  for_each_mixing(operands.variant, e, [&](const Mixing<V>& m) {
    const auto mix_rows = [&](Span<A> from, Span<A> to, Index size) {
      mix(operands.device, sight_of<V>, m.matrix_of(plan.mixing), m.key_blocks(from, size),
          m.query_blocks(to, size));
    };
    mix_rows(plan.summaries, plan.mixed_summaries, e.summary_size());
    if constexpr (mixes_key_sums<V>) mix_rows(plan.key_sums, plan.mixed_key_sums, e.feature_dim);
  });
}

template <class V, class A>
OwnWeights<A> own_weights(const Plan<V, A>& plan) {
  const Extents<V>& e = plan.extents;
  return {e.queries, RowFinder(e.queries), plan.mixing.data, e.mix_heads, e.mix_columns};
}

/// Q, Q^r, and the denominators of every query; under MixedProduct also R.
template <class V, class T>
void pack_queries(const Operands<V, T>& operands) {
  using A = Accumulator<T>;
  const CudaDevice& device = operands.device;
  const Plan<V, A>& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  const Index rows = e.queries.count();
  pack_features<rotates<V>>(device, operands.variant.feature_map, operands.scale(), e.queries,
                            plan.rotation, operands.q, e.feature_dim, plan.queries.data,
                            plan.rotated_queries.data,
                            RowBuffers<A>{plan.row_input, plan.grad_row});
  if constexpr (mixes_key_sums<V>) {
    launch(device, rows,
           MixedKeySumDenominators<A>{plan.queries.data,
                                      e.feature_dim,
                                      {Divisor(e.readers()), nullptr, plan.mixed_key_sums.data},
                                      operands.epsilon(),
                                      plan.denominators.data});
    if constexpr (masks_own_block<V>) {
      launch(
          device, e.key_summaries() * e.feature_dim,
          RunningKeySums<A>{key_panels(e, plan.keys, e.feature_dim), plan.running_key_sums.data});
      launch(device, rows,
             AddOwnDenominators<A>{own_weights(plan), plan.queries.data, plan.running_key_sums.data,
                                   e.feature_dim, plan.denominators.data});
    }
  } else if constexpr (mixes_products<V>) {
    launch(device, rows,
           MixedKeySumDenominators<A>{plan.queries.data,
                                      e.feature_dim,
                                      {Divisor(e.queries.of_block()), nullptr, plan.key_sums.data},
                                      A(0),
                                      plan.products.data});
    for_each_mixing(operands.variant, e, [&](const Mixing<V>& m) {
      for (Index g = m.first_head(); g < m.end_head(); ++g)
        mixed_product_denominators(device, m.matrix_of(plan.mixing), m.queries_of(plan.products, g),
                                   m.queries_of(plan.denominators, g));
    });
    launch(device, rows, AddEpsilon<A>{operands.epsilon(), plan.denominators.data});
  }
}

/// y of every query.
template <class V, class T>
void read_out_blocks(const Operands<V, T>& operands, const TensorView<T, 4>& y) {
  using A = Accumulator<T>;
  const CudaDevice& device = operands.device;
  const Plan<V, A>& plan = operands.plan;
  const Extents<V>& e = plan.extents;
  read_out(device, query_panels(e, plan.rotated_queries, e.feature_dim),
           mixed_summary_panels(e, plan.mixed_summaries),
           query_panels(e, plan.outputs, e.value_dim));
  if constexpr (masks_own_block<V>)
    read_out_own_block(device, own_weights(plan), plan.rotated_queries.data,
                       key_panels(e, plan.rotated_keys, e.feature_dim),
                       key_panels(e, plan.values, e.value_dim), plan.scores.data,
                       plan.outputs.data);
  scatter<T, A>(device, e.queries, plan.outputs.data, y, Update::overwrite,
                normalizes<V> ? plan.denominators.data : nullptr);
}

}  // namespace cuda

MHLA_NAMESPACE_END
