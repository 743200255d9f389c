// SPDX-License-Identifier: MIT
// The backward pass of one unit: the adjoints of forward_unit.hpp's stages in the reverse order.
//
//   groups of query blocks: mix S~_i, z~_i again -> per tile: U, dQ^r, c -> dq, dS~_i, dz~_i
//   rows of mix:            dm_ib += <dS~_i, S_b> + <dz~_i, z_b>
//   groups of key blocks:   dS_b = sum_i m_ib dS~_i, dz_b likewise -> per tile: dk, dv
//
// The summaries S_b, z_b are there before it starts: recomputed, or saved by the forward pass.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/forward_unit.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// What a backward pass is asked for, and what follows from that: work that serves no wanted
/// gradient is left out, and what remains is the same to the bit.
template <class L, class T>
struct BackwardRequest {
  TensorView<const T, 4> dy;
  GradientViews<T> gradients;
  Update update;

  bool query() const { return gradients.query.wanted; }
  bool keys() const { return gradients.key.wanted || gradients.value.wanted; }
  bool mixing() const { return gradients.mix.wanted; }
  /// dS~: for dk, dv and dmix.
  bool mixed_summaries() const { return keys() || mixing(); }
  /// c, the gradient of the denominators: for all but dv.
  bool denominators() const {
    return normalizes<L> && (query() || gradients.key.wanted || mixing());
  }
  /// dQ^r = U S~^T: for dq, and for c.
  bool query_features() const { return query() || denominators(); }
};

/// dS~ and dz~ of one mixing matrix of the unit, all query blocks.
template <class L, class A>
SummaryRows<A> mixed_gradients(const Plan<L, A>& plan, const Unit<A>& unit, Index matrix) {
  const Extents& e = plan.extents;
  const Index row = matrix * e.query_blocks;
  return SummaryRows<A>(unit.memory.grad_mixed_summaries.data + row * e.summary_size(),
                        unit.memory.grad_mixed_key_sums.data + row * e.feature_dim, e, 0,
                        unit.queries.blocks, mixes_key_sums<L>);
}

/// Where a query head's dQ^r of a tile waits until dR is known (MixedProduct).
template <class L, class A>
Panel<A> waiting_query_features(const Plan<L, A>& plan, const Unit<A>& unit, Index g, Index block,
                                const TokenTile& tile) {
  const Extents& e = plan.extents;
  const Index token = block * e.block_tokens + tile.offset;
  return panel(unit.memory.grad_features.data + (g * e.query_tokens + token) * e.feature_dim,
               tile.tokens, e.feature_dim);
}

/// dq where it is complete, dS~ and dz~ or C, of every query block of the unit.
template <class L, class T, class A>
void read_out_unit_gradient(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
                            const Unit<A>& unit, const ExecutorRef& loop) {
  const Plan<L, A>& plan = operands.plan;
  const Extents& e = plan.extents;
  const RowGroups groups(unit.queries.blocks);
  loop.parallel_for(groups.count, [&](Index group, Index slot) {
    const SlotScratch<A>& scratch = plan.slots[slot];
    SummaryRows<A> mixed;
    for (Index g = 0; g < e.group_size; ++g) {
      const Index head = unit.kv_head * e.group_size + g;
      const bool new_matrix = g < e.matrices;
      if (new_matrix)
        mixed = mix_group(plan, unit, head, groups, group, scratch, request.query_features());
      const SummaryRows<A> grad = mixed_gradients(plan, unit, e.matrices == 1 ? 0 : g);
      const TokenRows<const T> queries(operands.q, unit.queries.batch, head);
      const TokenRows<const T> grad_outputs(request.dy, unit.queries.batch, head);
      for (Index i = groups.begin(group); i < groups.begin(group + 1); ++i) {
        const BlockSpan& block = plan.queries.blocks[unit.queries.first_block + i];
        for (Index t = 0; t < block.tiles; ++t) {
          const TokenTile& tile = plan.queries.tiles[block.first_tile + t];
          const Into into = new_matrix && t == 0 ? Into::overwrite : Into::add;
          const FeaturePanels<A> q =
              pack_tile(operands, operands.scale(), plan.queries, tile, queries, scratch);
          const Span<const A> denominators =
              tile_denominators(operands, unit, g, mixed, i, tile, q.features, scratch);
          const Panel<A> u = panel(scratch.values.data, tile.tokens, e.value_dim);
          gather(plan.queries, tile, grad_outputs, u);
          divide_rows<A>(u, denominators);
          if (request.mixed_summaries())
            read_out_summary_gradient<A>(q.rotated, u, grad.summary(i), into);

          if (!request.query_features()) continue;
          Panel<A> grad_features = panel(scratch.grad_features.data, tile.tokens, e.feature_dim);
          if constexpr (mixes_products<L>)
            grad_features = waiting_query_features(plan, unit, g, i, tile);
          read_out_query_gradient<A>(u, mixed.summary(i), grad_features);

          FeatureGradient<A> total{grad_features, {}, {}};
          if constexpr (mixes_key_sums<L>) {
            const Span<A> c{scratch.grad_denominators.data, tile.tokens};
            denominator_gradient<A>(q.rotated, grad_features, denominators, c);
            if (request.mixed_summaries())
              read_out_key_sum_gradient<A>(q.features, c, grad.key_sum(i), into);
            total = {grad_features, c, mixed.key_sum(i)};
          } else if constexpr (mixes_products<L>) {
            denominator_gradient<A>(q.rotated, grad_features, denominators,
                                    tile_offsets(e, unit.memory.grad_denominators, g, i, tile));
          }
          if (!mixes_products<L> && request.query())
            unpack_feature_gradient(
                operands.variant.feature_map, plan.rotation, operands.scale(), plan.queries, tile,
                queries, total,
                TokenRows<T>(request.gradients.query.view, unit.queries.batch, head),
                request.update, scratch.row);
        }
      }
    }
  });
}

/// The rest of MixedProduct's adjoint: dR, then dz_b, and dq, which waited for dR.
template <class L, class T, class A>
void mixed_products_of_unit_gradient(const Operands<L, T>& operands,
                                     const BackwardRequest<L, T>& request, const Unit<A>& unit,
                                     const ExecutorRef& loop) {
  const Plan<L, A>& plan = operands.plan;
  const Extents& e = plan.extents;
  const auto of_head = [&](Span<A> array, Index g) {
    return panel(array.data + g * e.query_blocks * e.block_tokens, e.query_blocks, e.block_tokens);
  };
  const Span<A> grad_products = unit.memory.denominators;  // which are not needed any more
  loop.parallel_for(e.group_size, [&](Index g, Index) {
    mixed_product_gradient<A>(
        plan.mixing_of(unit.kv_head * e.group_size + g, unit.queries.blocks, unit.keys.blocks),
        of_head(unit.memory.grad_denominators, g), of_head(grad_products, g));
  });
  loop.parallel_for(unit.queries.blocks, [&](Index i, Index slot) {
    const SlotScratch<A>& scratch = plan.slots[slot];
    const BlockSpan& block = plan.queries.blocks[unit.queries.first_block + i];
    const Span<A> grad_key_sum{unit.memory.grad_key_sums.data + i * e.feature_dim, e.feature_dim};
    for (Index c = 0; c < e.feature_dim; ++c) grad_key_sum[c] = A(0);
    for (Index g = 0; g < e.group_size; ++g) {
      const Index head = unit.kv_head * e.group_size + g;
      const TokenRows<const T> queries(operands.q, unit.queries.batch, head);
      for (Index t = 0; t < block.tiles; ++t) {
        const TokenTile& tile = plan.queries.tiles[block.first_tile + t];
        const Span<A> weight = tile_offsets(e, grad_products, g, i, tile);
        if (request.gradients.key.wanted) {
          const FeaturePanels<A> q =
              pack_tile(operands, operands.scale(), plan.queries, tile, queries, scratch);
          own_key_sum_gradient<A>(q.features, weight, grad_key_sum, Into::add);
        }
        if (request.query())
          unpack_feature_gradient(
              operands.variant.feature_map, plan.rotation, operands.scale(), plan.queries, tile,
              queries,
              FeatureGradient<A>{waiting_query_features(plan, unit, g, i, tile), weight,
                                 unit.summaries.key_sum(i)},
              TokenRows<T>(request.gradients.query.view, unit.queries.batch, head), request.update,
              scratch.row);
      }
    }
  });
}

/// Adds the unit's part of dmix to `grad_mixing` [matrices, query blocks, key blocks].
template <class L, class T, class A>
void mix_unit_matrix_gradient(const Operands<L, T>& operands, const Unit<A>& unit, A* grad_mixing,
                              const ExecutorRef& loop) {
  const Plan<L, A>& plan = operands.plan;
  const Extents& e = plan.extents;
  const RowGroups groups(unit.queries.blocks);
  loop.parallel_for(groups.count, [&](Index group, Index) {
    const Index first = groups.begin(group);
    const Index rows = groups.size(group);
    const auto rows_of = [&](Index matrix) {
      return Panel<A>{grad_mixing + (matrix * e.query_blocks + first) * e.key_blocks, rows,
                      unit.keys.blocks, e.key_blocks};
    };
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      const SummaryRows<A> grad = mixed_gradients(plan, unit, matrix);
      mix_matrix_gradient<A>(grad.summaries.row_range(first, rows), unit.summaries.summaries,
                             rows_of(matrix));
      if constexpr (mixes_key_sums<L>)
        mix_matrix_gradient<A>(grad.key_sums.row_range(first, rows), unit.summaries.key_sums,
                               rows_of(matrix));
    }
    if constexpr (mixes_products<L>) {
      for (Index g = 0; g < e.group_size; ++g) {
        const Index row = g * e.query_blocks + first;
        mixed_product_matrix_gradient<A>(
            panel(unit.memory.grad_denominators.data + row * e.block_tokens, rows, e.block_tokens),
            panel(unit.memory.products.data + g * e.query_blocks * e.block_tokens, e.key_blocks,
                  e.block_tokens),
            rows_of(e.matrices == 1 ? 0 : g));
      }
    }
  });
}

/// dk and dv of every key block of the unit.
template <class L, class T, class A>
void summarize_unit_gradient(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
                             const Unit<A>& unit, const ExecutorRef& loop) {
  const Plan<L, A>& plan = operands.plan;
  const Extents& e = plan.extents;
  const TokenRows<const T> keys(operands.k, unit.keys.batch, unit.kv_head);
  const TokenRows<const T> values(operands.v, unit.keys.batch, unit.kv_head);
  const RowGroups groups(unit.keys.blocks);
  loop.parallel_for(groups.count, [&](Index group, Index slot) {
    const SlotScratch<A>& scratch = plan.slots[slot];
    const SummaryRows<A> grad(scratch.mixed_summaries.data, scratch.mixed_key_sums.data, e,
                              groups.begin(group), groups.size(group), normalizes<L>);
    if (e.matrices == 0) {  // no query head reads this kv head
      for (Index i = 0; i < groups.size(group); ++i) {
        std::fill_n(grad.summaries.row(i), grad.summaries.cols, A(0));
        std::fill_n(grad.key_sums.row(i), grad.key_sums.cols, A(0));
      }
    }
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      const Into into = matrix == 0 ? Into::overwrite : Into::add;
      const SummaryRows<A> grad_mixed = mixed_gradients(plan, unit, matrix);
      const Panel<const A> mixing = plan.mixing_of(unit.kv_head * e.group_size + matrix,
                                                   unit.queries.blocks, unit.keys.blocks);
      mix_summary_gradient<A>(mixing, grad.first, grad_mixed.summaries, grad.summaries, into);
      if constexpr (mixes_key_sums<L>)
        if (request.gradients.key.wanted)
          mix_summary_gradient<A>(mixing, grad.first, grad_mixed.key_sums, grad.key_sums, into);
    }
    for (Index b = groups.begin(group); b < groups.begin(group + 1); ++b) {
      const BlockSpan& block = plan.keys.blocks[unit.keys.first_block + b];
      Span<const A> grad_key_sum = grad.key_sum(b);
      if constexpr (mixes_products<L>)
        grad_key_sum = {unit.memory.grad_key_sums.data + b * e.feature_dim, e.feature_dim};
      for (Index t = 0; t < block.tiles; ++t) {
        const TokenTile& tile = plan.keys.tiles[block.first_tile + t];
        if (request.gradients.value.wanted) {
          const FeaturePanels<A> k = pack_tile(operands, A(1), plan.keys, tile, keys, scratch);
          const Panel<A> grad_values = panel(scratch.grad_values.data, tile.tokens, e.value_dim);
          summarize_value_gradient<A>(k.rotated, grad.summary(b), grad_values);
          scatter<T, A>(plan.keys, tile, grad_values,
                        TokenRows<T>(request.gradients.value.view, unit.keys.batch, unit.kv_head),
                        request.update);
        }
        if (request.gradients.key.wanted) {
          const Panel<A> v = panel(scratch.values.data, tile.tokens, e.value_dim);
          const Panel<A> grad_features =
              panel(scratch.grad_features.data, tile.tokens, e.feature_dim);
          gather(plan.keys, tile, values, v);
          summarize_key_gradient<A>(v, grad.summary(b), grad_features);
          unpack_feature_gradient(
              operands.variant.feature_map, plan.rotation, A(1), plan.keys, tile, keys,
              FeatureGradient<A>{grad_features, {}, grad_key_sum},
              TokenRows<T>(request.gradients.key.view, unit.keys.batch, unit.kv_head),
              request.update, scratch.row);
        }
      }
    }
  });
}

/// All wanted gradients of one unit. `grad_mixing` is the caller's partial sum of dmix.
template <class L, class T, class A>
void backward_unit(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
                   const Unit<A>& unit, A* grad_mixing, const ExecutorRef& loop) {
  if constexpr (mixes_products<L>) mixed_products_of_unit(operands, unit, loop);
  read_out_unit_gradient(operands, request, unit, loop);
  if (request.mixing()) mix_unit_matrix_gradient(operands, unit, grad_mixing, loop);
  if constexpr (mixes_products<L>) {
    if (request.query() || request.gradients.key.wanted)
      mixed_products_of_unit_gradient(operands, request, unit, loop);
  }
  if (request.keys()) summarize_unit_gradient(operands, request, unit, loop);
}

}  // namespace cpu

MHLA_NAMESPACE_END
