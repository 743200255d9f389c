// SPDX-License-Identifier: MIT
// The backward pass of one unit: the adjoints of forward_unit.hpp's stages in reverse order.
//
//   groups of query blocks: mix S~_i, z~_i again -> per tile: U, dQ^r, c -> dq, dS~_i, dz~_i
//   rows of mix:            dm_ib += <dS~_i, S_b> + <dz~_i, z_b>
//   groups of key blocks:   dS_b = sum_i m_ib dS~_i, dz_b likewise -> per tile: dk, dv
//                           (Causal: and what the own block's queries send back, dm_bb with it)
//
// The summaries S_b, z_b are there before it starts: recomputed, or saved by the forward pass.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/forward_unit.hpp>
#include <mhla/cpu/intra_block.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Which gradients a backward pass is to compute, and what they need: work for unwanted gradients
/// is skipped, and the rest has the same bits.
template <class L, class T>
struct BackwardRequest {
  TensorView<const T, 4> dy;
  GradientViews<T> gradients;
  Update update;

  bool query() const { return gradients.query.wanted; }
  bool keys() const { return gradients.key.wanted || gradients.value.wanted; }
  bool mixing() const { return gradients.mix.wanted; }
  /// dS~: needed for dk, dv and dmix.
  bool mixed_summaries() const { return keys() || mixing(); }
  /// c, the gradient of the denominators: needed for all but dv.
  bool denominators() const {
    return normalizes<L> && (query() || gradients.key.wanted || mixing());
  }
  /// dQ^r = U S~^T: needed for dq and c.
  bool query_features() const { return query() || denominators(); }
};

/// Under Causal the keys' gradients also need den and c of the same block's queries.
template <class L>
inline constexpr bool keeps_denominators = masks_own_block<L>&& normalizes<L>;

/// dS~ and dz~ of one mixing matrix of the unit, all query blocks. A structured mixing has them in
/// one place for all matrices.
template <class L, class A>
SummaryRows<A> mixed_gradients(const Plan<L, A>& plan, const Unit<A>& unit, Index matrix) {
  const Extents& e = plan.extents;
  if constexpr (factors_mixing<L>) return structured_gradients(plan, unit).mixed;
  const Index row = matrix * e.query_blocks;
  return SummaryRows<A>(unit.memory.grad_mixed_summaries.data + row * e.summary_stride(),
                        unit.memory.grad_mixed_key_sums.data + row * e.feature_dim, e,
                        unit.orientation, 0, unit.queries.blocks, mixes_key_sums<L>);
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

/// U = dy / den of a tile.
template <class L, class T, class A>
Panel<const A> pack_grad_numerators(const Operands<L, T>& operands, const TokenRows<const T>& rows,
                                    const TokenTile& tile, Span<const A> denominators,
                                    const SlotScratch<A>& scratch) {
  const BlockTable& table = operands.plan.tables.queries;
  if (denominators.size == 0) return readable_panel<T>(table, tile, rows, scratch.values);
  const Panel<A> u = panel(scratch.values.data, tile.tokens, operands.plan.extents.value_dim);
  const Span<A> inverses{scratch.inverses.data, denominators.size};
  if (invert<A>(denominators, inverses)) {
    gather<T, A>(table, tile, rows, inverses, u);
  } else {
    gather<T, A>(table, tile, rows, {}, u);
    divide_rows<A>(u, denominators);
  }
  return u;
}

/// What one tile of query head g contributes: dS~_i, dz~_i or C, and dq if it is complete.
template <class L, class T, class A>
void read_out_tile_gradient(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
                            const Unit<A>& unit, const QueryTile<A>& at, Index g) {
  const Plan<L, A>& plan = operands.plan;
  const Extents& e = plan.extents;
  const BlockTable& table = plan.tables.queries;
  const TokenTile& tile = table.tiles[at.index];
  const BlockSpan& block = table.blocks[unit.queries.first_block + at.block];
  const TokenRows<const T> queries = query_rows(plan, unit, g, operands.q);
  const TokenRows<const T> grad_outputs = query_rows(plan, unit, g, request.dy);
  const TokenRows<T> results = query_rows(plan, unit, g, request.gradients.query.view);
  const FeaturePanels<A> q = pack_query_tile(operands, unit, g, tile, at.scratch);
  const Span<const A> denominators = tile_denominators(operands, unit, at, g, q.features);
  const Panel<const A> u =
      pack_grad_numerators(operands, grad_outputs, tile, denominators, at.scratch);
  const SummaryRows<A> grad = mixed_gradients(plan, unit, at.matrix);
  const bool first = at.index == block.first_tile && g == plan.heads_of(at.matrix).first;
  const Into into = first ? Into::overwrite : Into::add;
  Prefetch now = prefetch_tile(table, unit.queries, at.index, {results});
  Prefetch next = prefetch_tile(table, unit.queries, at.index + 1, {queries, grad_outputs});
  prefetch_summary(at.mixed, at.block + 1, at.index - block.first_tile, block.tiles, next);
  prefetch_summary(grad, at.block + 1, at.index - block.first_tile, block.tiles, now);
  if (request.mixed_summaries())
    read_out_summary_gradient<A>(q.rotated, u, grad.summary(at.block), into, &next);
  if constexpr (keeps_denominators<L>)
    copy_row(tile_offsets(e, unit.memory.denominators, g, at.block, tile).data, denominators.data,
             tile.tokens);
  if (!request.query_features()) return;

  Panel<A> grad_features = panel(at.scratch.grad_features.data, tile.tokens, e.feature_dim);
  if constexpr (mixes_products<L>)
    grad_features = waiting_query_features(plan, unit, g, at.block, tile);
  read_out_query_gradient<A>(u, at.mixed.summary(at.block), grad_features, &now);
  if constexpr (masks_own_block<L>)
    read_out_own_tile_query_gradient<A>(u, at.own.rotated, at.own.values, at.own.scores,
                                        grad_features);

  FeatureGradients<A> total{grad_features};
  if constexpr (normalizes<L>) {
    Span<A> c{at.scratch.grad_denominators.data, tile.tokens};
    if constexpr (mixes_products<L> || keeps_denominators<L>)
      c = tile_offsets(e, unit.memory.grad_denominators, g, at.block, tile);
    denominator_gradient<A>(q.rotated, grad_features, denominators, c);
    if constexpr (mixes_products<L>) return;  // dq waits for dR

    if (request.mixed_summaries())
      read_out_key_sum_gradient<A>(q.features, c, grad.key_sum(at.block), into);
    total.weights = c;
    total.unrotated = every_row(at.mixed.key_sum(at.block));
    if (masks_own_block<L>) total.unrotated = at.own.key_sums.placed();
  }
  if (request.query())
    unpack_feature_gradient(operands.variant.feature_map, plan.rotation, operands.scale(), table,
                            tile, queries, total, results, request.update, at.scratch.row);
}

/// dq if it is complete, dS~ and dz~ or C, of every query block of the unit. A structured mixing
/// takes one matrix after the other, `after(matrix)` it.
template <class L, class T, class A, class After>
void read_out_unit_gradient(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
                            const Unit<A>& unit, const ExecutorRef& loop, const After& after) {
  const Plan<L, A>& plan = operands.plan;
  for (Index i = 0; i < unit.queries.blocks; ++i) {
    if (plan.tables.queries.blocks[unit.queries.first_block + i].tiles > 0) continue;
    for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) {
      const SummaryRows<A> grad = mixed_gradients(plan, unit, matrix);
      set_zero(grad.summary(i), grad.key_sum(i));
    }
  }
  const bool mixed_wanted = request.query_features() || (factors_mixing<L> && request.mixing());
  for_each_query_tile(
      operands, unit, mixed_wanted, loop,
      [&](const QueryTile<A>& at, Index g) {
        read_out_tile_gradient(operands, request, unit, at, g);
      },
      after);
}

/// The rest of MixedProduct's adjoint: dR, then dz_b and dq, which waited for dR.
template <class L, class T, class A>
void mixed_products_of_unit_gradient(const Operands<L, T>& operands,
                                     const BackwardRequest<L, T>& request, const Unit<A>& unit,
                                     const ExecutorRef& loop) {
  const Plan<L, A>& plan = operands.plan;
  const Extents& e = plan.extents;
  const Span<A> grad_products = unit.memory.denominators;  // which are no longer needed
  loop.parallel_for(e.group_size, [&](Index g, Index) {
    mixed_product_gradient<A>(unit_mixing(plan, unit, g),
                              head_offsets(e, unit.memory.grad_denominators, g),
                              head_offsets(e, grad_products, g));
  });
  loop.parallel_for(unit.queries.blocks, [&](Index i, Index slot) {
    const SlotScratch<A>& scratch = plan.scratch[slot];
    const BlockSpan& block = plan.tables.queries.blocks[unit.queries.first_block + i];
    const Span<A> grad_key_sum{unit.memory.grad_key_sums.data + i * e.feature_dim, e.feature_dim};
    for (Index c = 0; c < e.feature_dim; ++c) grad_key_sum[c] = A(0);
    for (Index g = 0; g < e.group_size; ++g) {
      for (Index t = 0; t < block.tiles; ++t) {
        const TokenTile& tile = plan.tables.queries.tiles[block.first_tile + t];
        const Span<A> weight = tile_offsets(e, grad_products, g, i, tile);
        if (request.gradients.key.wanted) {
          const FeaturePanels<A> q = pack_query_tile(operands, unit, g, tile, scratch);
          own_key_sum_gradient<A>(q.features, weight, grad_key_sum, Into::add);
        }
        if (!request.query()) continue;
        unpack_feature_gradient(operands.variant.feature_map, plan.rotation, operands.scale(),
                                plan.tables.queries, tile, query_rows(plan, unit, g, operands.q),
                                FeatureGradients<A>{waiting_query_features(plan, unit, g, i, tile),
                                                    weight, every_row(unit.summaries.key_sum(i))},
                                query_rows(plan, unit, g, request.gradients.query.view),
                                request.update, scratch.row);
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
  const Index most = matrix_gradient_cols(unit.keys.blocks);
  const MatrixRows rows{plan.problem.queries.first, unit.queries.blocks + unit.other_queries};
  loop.parallel_for(ceil_div(unit.keys.blocks, most), [&](Index task, Index slot) {
    const Index first = task * most;
    const Index count = (std::min)(most, unit.keys.blocks - first);
    const auto columns_of = [&](Index matrix) {
      return Panel<A>{grad_mixing + matrix * e.query_blocks * e.key_blocks, unit.queries.blocks,
                      unit.keys.blocks, e.key_blocks}
          .col_range(first, count);
    };
    const auto add = [&](const Panel<A>& grad_mixed, const Panel<A>& from, Index matrix) {
      const Panel<A> blocks = from.row_range(first, count);
      if constexpr (sees_past_only<L>) {
        mix_past_matrix_gradient<A>(grad_mixed, rows, first, lag_of(sight_of<L>), blocks,
                                    columns_of(matrix), plan.scratch[slot].triangle);
      } else {
        mix_matrix_gradient<A>(grad_mixed, blocks, columns_of(matrix), rows.all);
      }
    };
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      const SummaryRows<A> grad = mixed_gradients(plan, unit, matrix);
      add(grad.summaries, unit.summaries.summaries, matrix);
      if constexpr (mixes_key_sums<L>) add(grad.key_sums, unit.summaries.key_sums, matrix);
    }
    if constexpr (mixes_products<L>) {
      for (Index g = 0; g < e.group_size; ++g) {
        mixed_product_matrix_gradient<A>(
            head_offsets(e, unit.memory.grad_denominators, g),
            head_offsets(e, unit.memory.products, g).row_range(first, count),
            columns_of(e.matrices == 1 ? 0 : g));
      }
    }
  });
}

/// Mixes what queries send back to the key blocks of a group, from(matrix) into `to`.
template <class L, class A, class From>
void mix_group_gradient(const Plan<L, A>& plan, const Unit<A>& unit, Index first,
                        const Panel<A>& to, const From& from) {
  const Problem& problem = plan.problem;
  [[maybe_unused]] const Index lag =
      lag_of(sight_of<L>) + problem.keys.first - problem.queries.first;
  for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) {
    const Into into = matrix == 0 ? Into::overwrite : Into::add;
    const Panel<const A> mixing = unit_mixing(plan, unit, matrix);
    if constexpr (sees_past_only<L>) {
      mix_past_summary_gradient<A>(mixing, first, lag, from(matrix), to, into);
    } else {
      mix_summary_gradient<A>(mixing, first, from(matrix), to, into);
    }
  }
}

/// dS and dz of a group of key blocks, in the scratch of a slot; dS only if it is asked for.
template <class L, class T, class A>
SummaryRows<A> mix_group_gradient(const Operands<L, T>& operands,
                                  const BackwardRequest<L, T>& request, const Unit<A>& unit,
                                  const RowGroups& groups, Index group,
                                  const SlotScratch<A>& scratch, bool summaries_wanted = true) {
  const Plan<L, A>& plan = operands.plan;
  const SummaryRows<A> grad(scratch.mixed_summaries.data, scratch.mixed_key_sums.data, plan.extents,
                            unit.orientation, groups.begin(group), groups.size(group),
                            normalizes<L>);
  if (plan.extents.matrices == 0) {  // no query head reads this kv head
    if (summaries_wanted) set_zero(grad.summaries);
    set_zero(grad.key_sums);
  }
  if (summaries_wanted)
    mix_group_gradient(plan, unit, grad.first, grad.summaries,
                       [&](Index matrix) { return mixed_gradients(plan, unit, matrix).summaries; });
  if constexpr (mixes_key_sums<L>)
    if (request.gradients.key.wanted)
      mix_group_gradient(plan, unit, grad.first, grad.key_sums, [&](Index matrix) {
        return mixed_gradients(plan, unit, matrix).key_sums;
      });
  return grad;
}

/// A tile of key block `block` at work on a slot, and the panels in which its gradients are summed.
template <class A>
struct KeyTile {
  Index block;
  const TokenTile& tile;
  bool first;  // of its block
  bool last;
  const SlotScratch<A>& scratch;
  FeaturePanels<A> keys;   // phi(k), and the same rotated
  Panel<const A> values;   // v
  Panel<A> grad_rotated;   // dK^r
  Panel<A> grad_features;  // dK under Causal, else dz_b for all
  Panel<A> grad_values;    // dV
};

// Under Causal the tile's own queries meanwhile pass through the slot's panels.
template <class L, class T, class A>
KeyTile<A> pack_key_tile(const Operands<L, T>& operands, const Unit<A>& unit, Index b, Index index,
                         const SlotScratch<A>& scratch) {
  const Plan<L, A>& plan = operands.plan;
  const Extents& e = plan.extents;
  const BlockTable& table = plan.tables.keys;
  const BlockSpan& block = table.blocks[unit.keys.first_block + b];
  const TokenTile& tile = table.tiles[index];
  const auto of = [&](Span<A> usual, Span<A> own) {
    return panel(masks_own_block<L> ? own.data : usual.data, tile.tokens, e.feature_dim);
  };
  const Panel<A> rotated = of(scratch.rotated, scratch.own.rotated);
  const KeyTile<A> k{
      b,
      tile,
      index == block.first_tile,
      index + 1 == block.first_tile + block.tiles,
      scratch,
      {normalizes<L> ? of(scratch.features, scratch.own.features) : rotated, rotated},
      readable_panel<T>(table, tile, key_rows(unit, operands.v),
                        masks_own_block<L> ? scratch.own.values : scratch.values),
      panel(scratch.grad_features.data, tile.tokens, e.feature_dim),
      panel(scratch.grad_unrotated.data, masks_own_block<L> && normalizes<L> ? tile.tokens : 0,
            e.feature_dim),
      panel(scratch.grad_values.data, tile.tokens, e.value_dim)};
  pack_features(operands.variant.feature_map, plan.rotation, A(1), table, tile,
                key_rows(unit, operands.k), k.keys.features, k.keys.rotated, scratch.row);
  return k;
}

/// The gradients of a key tile: dK^r, dK and dV.
template <class A>
struct KeyGradients {
  Panel<A> rotated;
  Panel<A> features;  // no rows without a normalizer
  Panel<A> values;
};

/// Adds m_bb = `own_weight` times what its own queries sent back to a tile's gradients, and that of
/// m_bb to `grad_weight`.
template <class L, class T, class A>
void add_own_gradients(const BackwardRequest<L, T>& request, A own_weight,
                       const FeaturePanels<A>& keys, const KeyGradients<A>& own,
                       const KeyGradients<A>& sums, A* grad_weight) {
  if (request.mixing())
    *grad_weight += inner_product<A>(keys.rotated, own.rotated.col_range(0, keys.rotated.cols)) +
                    inner_product<A>(keys.features, own.features);
  if (request.gradients.key.wanted) {
    add_scaled(sums.rotated, own_weight, own.rotated);
    if constexpr (normalizes<L>) add_scaled(sums.features, own_weight, own.features);
  }
  if (request.gradients.value.wanted) add_scaled(sums.values, own_weight, own.values);
}

/// What the queries of a key tile's own block send back to it (Causal): adds m_bb times that to the
/// tile's gradients, and that of m_bb to `grad_mixing`; then adds the tile's queries to dP and w.
/// Tiles are visited from last to first.
template <class L, class T, class A>
void add_own_tile_gradient(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
                           const Unit<A>& unit, const KeyTile<A>& k, A* grad_mixing) {
  const Plan<L, A>& plan = operands.plan;
  const Extents& e = plan.extents;
  const SlotScratch<A>& scratch = k.scratch;
  const TokenTile& tile = k.tile;
  const Panel<A> scores = panel(scratch.own.scores.data, tile.tokens, tile.tokens);
  const Panel<A> own_keys = panel(scratch.own.grad_rotated.data, tile.tokens, e.feature_dim);
  const Panel<A> own_values = panel(scratch.own.grad_values.data, tile.tokens, e.value_dim);
  const Panel<A> own_key_sums =
      panel(scratch.own.grad_key_sums.data, normalizes<L> ? tile.tokens : 0, e.feature_dim);
  const bool keys_wanted = request.gradients.key.wanted || request.mixing();
  for (Index matrix = 0; matrix < e.matrices; ++matrix) {
    const Panel<A> grad_summary = panel(scratch.own.grad_summaries.data + matrix * e.summary_size(),
                                        e.value_dim, e.feature_dim);
    if (k.last) {  // no later tile has contributed to dP
      set_zero(own_keys);
      set_zero(own_values);
    } else {
      if (keys_wanted) summarize_key_gradient<A>(k.values, grad_summary, own_keys, nullptr);
      if (request.gradients.value.wanted)
        multiply_right_transposed<A>(own_values, k.keys.rotated, grad_summary);
    }
    set_zero(own_key_sums);

    const auto heads = plan.heads_of(matrix);
    for (Index g = heads.first; g < heads.last; ++g) {
      const FeaturePanels<A> q = pack_query_tile(operands, unit, g, tile, scratch);
      Span<const A> denominators;
      if constexpr (normalizes<L>)
        denominators = tile_offsets(e, unit.memory.denominators, g, k.block, tile);
      const Panel<const A> u = pack_grad_numerators(operands, query_rows(plan, unit, g, request.dy),
                                                    tile, denominators, scratch);
      if (keys_wanted) read_out_own_tile_key_gradient<A>(u, q.rotated, k.values, scores, own_keys);
      if (request.gradients.value.wanted)
        read_out_own_tile_value_gradient<A>(u, q.rotated, k.keys.rotated, scores, own_values);
      if (normalizes<L> && keys_wanted)
        add_weighted_rows<A>(own_key_sums,
                             tile_offsets(e, unit.memory.grad_denominators, g, k.block, tile),
                             q.features);
      if (!k.first)  // an earlier tile needs it
        read_out_summary_gradient<A>(q.rotated, u, grad_summary,
                                     k.last && g == heads.first ? Into::overwrite : Into::add,
                                     nullptr);
    }
    if (normalizes<L> && keys_wanted)
      accumulate_backwards<A>(
          own_key_sums, {scratch.own.grad_running.data + matrix * e.feature_dim, e.feature_dim});

    add_own_gradients(request, own_weight(plan, unit, matrix, k.block), k.keys,
                      KeyGradients<A>{own_keys, own_key_sums, own_values},
                      KeyGradients<A>{k.grad_rotated, k.grad_features, k.grad_values},
                      grad_mixing + matrix * plan.matrix_size + plan.own_entry(k.block));
  }
}

/// dk and dv of key block b of the unit, from its dS and dz; under Causal also m_bb's gradient.
template <class L, class T, class A>
void summarize_block_gradient(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
                              const Unit<A>& unit, Index b, const SummaryRows<A>& grad,
                              A* grad_mixing, const SlotScratch<A>& scratch) {
  const Plan<L, A>& plan = operands.plan;
  const Extents& e = plan.extents;
  const TokenRows<const T> keys = key_rows(unit, operands.k);
  const TokenRows<const T> values = key_rows(unit, operands.v);
  const TokenRows<T> key_results = key_rows(unit, request.gradients.key.view);
  const TokenRows<T> value_results = key_rows(unit, request.gradients.value.view);
  const bool values_in_one_step = !masks_own_block<L> &&
                                  is_in_place_of_products<A>(value_results) &&
                                  request.update == Update::overwrite;
  const BlockTable& table = plan.tables.keys;
  const BlockSpan& block = table.blocks[unit.keys.first_block + b];
  Span<A> grad_key_sum = grad.key_sum(b);
  if constexpr (mixes_products<L>)
    grad_key_sum = {unit.memory.grad_key_sums.data + b * e.feature_dim, e.feature_dim};
  std::fill_n(scratch.own.grad_running.data, scratch.own.grad_running.size, A(0));
  const Panel<A> grad_summary = panel(scratch.transposed.data, e.feature_dim, e.value_dim);
  if (request.gradients.value.wanted) transpose<A>(grad_summary, grad.summary(b));
  // In reverse: under Causal, later queries send gradients back to earlier keys.
  for (Index t = block.first_tile + block.tiles - 1; t >= block.first_tile; --t) {
    const KeyTile<A> k = pack_key_tile(operands, unit, b, t, scratch);
    Prefetch results = prefetch_tile(table, unit.keys, t, {value_results, key_results});
    Prefetch next = prefetch_tile(table, unit.keys, t - 1, {keys, values});
    prefetch_summary(grad, b + 1, t - block.first_tile, block.tiles, results);
    if (request.gradients.key.wanted)
      summarize_key_gradient<A>(k.values, grad.summary(b), k.grad_rotated, &results);
    if (request.gradients.value.wanted)
      summarize_value_gradient<A>(k.keys.rotated, grad_summary,
                                  values_in_one_step
                                      ? in_place_of_products<A>(table, k.tile, value_results)
                                      : k.grad_values.placed(),
                                  &next);
    if constexpr (masks_own_block<L>) {
      for (Index r = 0; r < k.grad_features.rows; ++r)
        copy_row(k.grad_features.row(r), grad_key_sum.data, e.feature_dim);
      add_own_tile_gradient(operands, request, unit, k, grad_mixing);
    }
    if (request.gradients.value.wanted && !values_in_one_step)
      scatter<T, A>(table, k.tile, k.grad_values, {}, value_results, request.update);
    if (!request.gradients.key.wanted) continue;
    FeatureGradients<A> total{k.grad_rotated};
    if (normalizes<L>)
      total.unrotated = masks_own_block<L> ? k.grad_features.placed() : every_row(grad_key_sum);
    unpack_feature_gradient(operands.variant.feature_map, plan.rotation, A(1), table, k.tile, keys,
                            total, key_results, request.update, scratch.row);
  }
}

/// dk and dv of every key block of the unit; under Causal also the diagonal of dmix.
template <class L, class T, class A>
void summarize_unit_gradient(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
                             const Unit<A>& unit, A* grad_mixing, const ExecutorRef& loop) {
  const Plan<L, A>& plan = operands.plan;
  const auto run_block = [&](Index b, const SummaryRows<A>& grad, const SlotScratch<A>& scratch) {
    summarize_block_gradient(operands, request, unit, b, grad, grad_mixing, scratch);
  };
  if constexpr (factors_mixing<L>) {
    const SummaryRows<A> grad = structured_gradients(plan, unit).keys;
    loop.parallel_for(unit.keys.blocks,
                      [&](Index b, Index slot) { run_block(b, grad, plan.scratch[slot]); });
  } else {
    const RowGroups groups = shared_row_groups<L>(
        plan.extents, unit.keys.blocks, unit.queries.blocks,
        plan.extents.matrices > 1 ? Into::add : Into::overwrite, loop.num_slots());
    loop.parallel_for(groups.count, [&](Index group, Index slot) {
      const SlotScratch<A>& scratch = plan.scratch[slot];
      const SummaryRows<A> grad =
          mix_group_gradient(operands, request, unit, groups, group, scratch);
      for (Index b = groups.begin(group); b < groups.begin(group + 1); ++b)
        run_block(b, grad, scratch);
    });
  }
}

/// All wanted gradients of one unit. `grad_mixing` is the caller's partial sum of dmix.
template <class L, class T, class A>
void backward_unit(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
                   const Unit<A>& unit, A* grad_mixing, const ExecutorRef& loop) {
  if constexpr (mixes_products<L>) mixed_products_of_unit(operands, unit, loop);
  read_out_unit_gradient(operands, request, unit, loop, [&]([[maybe_unused]] Index matrix) {
    if constexpr (factors_mixing<L>)
      if (request.mixed_summaries())
        mix_unit_gradient(operands.plan, unit, matrix, request.mixing() ? grad_mixing : nullptr,
                          loop);
  });
  if (!factors_mixing<L> && request.mixing())
    mix_unit_matrix_gradient(operands, unit, grad_mixing, loop);
  if constexpr (mixes_products<L>) {
    if (request.query() || request.gradients.key.wanted)
      mixed_products_of_unit_gradient(operands, request, unit, loop);
  }
  if (request.keys() || (masks_own_block<L> && request.mixing()))
    summarize_unit_gradient(operands, request, unit, grad_mixing, loop);
}

}  // namespace cpu

MHLA_NAMESPACE_END
