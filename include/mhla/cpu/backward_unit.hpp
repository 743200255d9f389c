// SPDX-License-Identifier: MIT
// The backward pass of one unit: the adjoints of forward_unit.hpp's stages in reverse order.
//
//   groups of query blocks: mix S~_i, z~_i again -> per tile: U, dQ^r, c -> dq, dS~_i, dz~_i
//   rows of mix:            dm_ib += <dS~_i, S_b> + <dz~_i, z_b>
//   groups of key blocks:   dS_b = sum_i m_ib dS~_i, dz_b likewise -> per tile: dk, dv
//                           (Causal: and what the own block's queries send back, dm_bb with it)
//
// The summaries S_b, z_b are there before it starts: recomputed, or saved by the forward pass. `by`
// is exact::Backward or pairs::Backward (pairs/backward.hpp).
#pragma once

#include <mhla/cpu/forward_unit.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Under Causal the keys' gradients also need den and c of the same block's queries.
template <class L>
inline constexpr bool keeps_denominators = is_causal_within_block<L>&& normalizes<L>;

/// dS~ and dz~ of one mixing matrix of the unit, all query blocks. A structured mixing has them in
/// one place for all matrices.
template <class L, class T, class A = Accumulator<T>>
SummaryRows<A> mixed_gradients(const Unit<L, T>& unit, Index matrix) {
  const Extents& e = unit.extents();
  if constexpr (is_structured<L>) return structured_gradients(unit).mixed;
  const Index row = matrix * e.query_blocks;
  return SummaryRows<A>(unit.memory.grad_mixed_summaries.data + row * e.summary_stride(),
                        unit.memory.grad_mixed_key_sums.data + row * e.feature_dim, e,
                        unit.orientation(), 0, unit.queries.blocks, mixes_key_sums<L>);
}

/// dS and dz of key blocks from `first` on: mixes what queries send back to them, from(matrix).
template <class L, class T, class A, class From>
void mix_blocks_gradient(const Unit<L, T>& unit, Index first, const SummaryRows<A>& to,
                         const From& from, bool summaries_wanted = true,
                         bool key_sums_wanted = true) {
  const Problem& problem = unit.plan.problem;
  const Index lag = lag_of(sight_of<L>) + problem.keys.first - problem.queries.first;
  const auto mix_back = [&](Panel<A> SummaryRows<A>::*width) {
    for (Index matrix = 0; matrix < unit.extents().matrices; ++matrix) {
      const Into into = matrix == 0 ? Into::overwrite : Into::add;
      mix_summary_gradient<sight_of<L>, A>(unit.mixing(matrix), first, lag, from(matrix).*width,
                                           to.*width, into);
    }
  };
  if (summaries_wanted) mix_back(&SummaryRows<A>::summaries);
  if constexpr (mixes_key_sums<L>)
    if (key_sums_wanted) mix_back(&SummaryRows<A>::key_sums);
}

/// dS, unless it is in pairs, and dz of a group of key blocks, in the scratch of a slot. Those of a
/// structured mixing are already in its work array.
template <class L, class T, class A>
SummaryRows<A> mix_group_gradient(const Unit<L, T>& unit, const BackwardRequest<L, T>& request,
                                  const RowGroups& groups, Index group,
                                  const SlotScratch<A>& scratch) {
  if constexpr (is_structured<L>) return structured_gradients(unit).keys;
  const SummaryRows<A> grad(scratch.mixed_summaries.data, scratch.mixed_key_sums.data,
                            unit.extents(), unit.orientation(), groups.begin(group),
                            groups.size(group), normalizes<L>);
  if (unit.extents().matrices == 0) {  // no query head reads this kv head
    if (!unit.in_pairs) set_zero(grad.summaries);
    set_zero(grad.key_sums);
  }
  mix_blocks_gradient(
      unit, grad.first, grad, [&](Index matrix) { return mixed_gradients(unit, matrix); },
      !unit.in_pairs, request.gradients.key.wanted);
  return grad;
}

/// Adds the unit's part of dmix, some columns of every matrix at a time.
template <class By>
void add_mixing_gradient(const By& by, const ExecutorRef& loop) {
  const auto& unit = by.unit;
  const Extents& e = unit.extents();
  const Index most = matrix_gradient_cols(unit.keys.blocks);
  loop.parallel_for(ceil_div(unit.keys.blocks, most), [&](Index task, Index slot) {
    const Index first = task * most;
    const Index count = (std::min)(most, unit.keys.blocks - first);
    for (Index matrix = 0; matrix < e.matrices; ++matrix)
      by.add_mixing_gradient(
          {unit.memory.grad_mixing.row(matrix) + first, unit.queries.blocks, count, e.key_blocks},
          matrix, first, unit.plan.scratch[slot]);
  });
}

/// dS of a key block, transposed and not, and dz.
template <class A, class Summary>
struct BlockGradient {
  Summary transposed;
  Summary not_transposed;
  Span<A> key_sum;
};

/// What one tile of query head g contributes: dS~_i, dz~_i or C, and dq if it is complete.
template <class By, class L = typename By::Variant, class A = typename By::A>
void read_out_tile_gradient(const By& by, const typename By::Tile& at, Index g) {
  const auto& unit = by.unit;
  const auto& request = by.request;
  const Extents& e = unit.extents();
  const TokenTile& tile = at.tile();
  const FeaturePanels<A> q = pack_features(query_features(unit, g, tile), at.scratch);
  const Span<const A> denominators = tile_denominators(unit, at, g, q.features);
  const Panel<const A> u =
      pack_grad_numerators(unit, g, request.dy, tile, denominators, at.scratch);
  const auto heads = unit.plan.heads_of(at.matrix);
  const bool first = at.part() == 0 && g == heads.first;
  const bool last = at.part() + 1 == at.parts() && g + 1 == heads.last;
  Prefetch now =
      prefetch_tile(unit.queries, at.index, {unit.query_rows(g, request.gradients.query.view)});
  Prefetch next =
      prefetch_tile(unit.queries, at.index + 1,
                    {unit.query_rows(g, unit.operands.q), unit.query_rows(g, request.dy)});
  if (request.mixed_summaries()) by.add_summary_gradient(at, q.rotated, u, first, last, &next);
  if constexpr (keeps_denominators<L>)
    copy_row(tile_offsets(e, unit.memory.denominators, g, at.block, tile).data, denominators.data,
             tile.tokens);
  if (!request.grad_features()) return;

  FeatureGradients<A> total{by.query_gradient(at, g, u, &now)};
  if constexpr (normalizes<L>) {
    Span<A> c{at.scratch.grad_denominators.data, tile.tokens};
    if constexpr (mixes_products<L> || keeps_denominators<L>)
      c = tile_offsets(e, unit.memory.grad_denominators, g, at.block, tile);
    denominator_gradient<A>(q.rotated, total.rotated, denominators, c);
    if constexpr (mixes_products<L>) return;  // dq waits for dR

    const Into into = first ? Into::overwrite : Into::add;
    if constexpr (requires { by.centers; })
      by.add_center_gradients(at, q.features, u, denominators, c, into);
    if (request.mixed_summaries())
      weighted_row_sum<A>(mixed_gradients(unit, at.matrix).key_sum(at.block), q.features, c, into);
    total.weights = c;
    total.unrotated = every_row(at.mixed.key_sum(at.block));
    if (is_causal_within_block<L>) total.unrotated = at.own.key_sums.placed();
  }
  unpack_query_gradient(unit, request, g, tile, total, at.scratch.row);
}

/// dq if it is complete, dS~ and dz~ or C, of every query block of the unit. A structured mixing
/// takes one matrix after the other, `after(matrix)` it.
template <class By, class After>
void read_out_unit_gradient(const By& by, const ExecutorRef& loop, const After& after) {
  const bool mixed_wanted =
      by.request.grad_features() || (is_structured<typename By::Variant> && by.request.mixing());
  for_each_query_tile(
      by, mixed_wanted, loop,
      [&](const typename By::Tile& at, Index g) { read_out_tile_gradient(by, at, g); }, after);
}

/// Where a tile's gradients are summed. Products in pairs write whole columns.
template <class L, class T, class A>
KeyGradients<A> gradient_panels(const Unit<L, T>& unit, const TilePanels<A>& in, Index tokens) {
  const Extents& e = unit.extents();
  return {{in.grad_features.data, tokens, e.feature_dim, whole_columns(e.feature_dim)},
          panel(in.grad_unrotated.data, keeps_denominators<L> ? tokens : 0, e.feature_dim),
          {in.grad_values.data, tokens, e.value_dim, whole_columns(e.value_dim)}};
}

/// What the queries of a key tile's own block send back to it (Causal): adds m_bb times that to the
/// tile's gradients, and that of m_bb to dmix; then adds the tile's queries to dP and w.
/// Tiles are visited from last to first.
template <class By, class L = typename By::Variant, class A = typename By::A>
void add_own_tile_gradient(const By& by, const typename By::OwnKeys& k) {
  const auto& unit = by.unit;
  const auto& request = by.request;
  const Extents& e = unit.extents();
  const SlotScratch<A>& scratch = k.scratch;
  const KeyGradients<A> own = gradient_panels(unit, scratch.own, k.tile.tokens);
  for (Index matrix = 0; matrix < e.matrices; ++matrix) {
    const Panel<A> later = scratch.own.grad_summary(e, matrix);
    if (k.last) {  // no later tile has contributed to it: 0, to the rows' ends, as vectors add
      std::fill_n(own.rotated.data, own.rotated.rows * own.rotated.stride, A(0));
      std::fill_n(own.values.data, own.values.rows * own.values.stride, A(0));
    } else {
      by.take_later_gradients(k, later, own);
    }
    set_zero(own.features);

    const auto heads = unit.plan.heads_of(matrix);
    for (Index g = heads.first; g < heads.last; ++g) {
      const FeaturePanels<A> q = pack_features(query_features(unit, g, k.tile), scratch);
      Span<const A> denominators;
      if constexpr (normalizes<L>)
        denominators = tile_offsets(e, unit.memory.denominators, g, k.block, k.tile);
      const Panel<const A> u =
          pack_grad_numerators(unit, g, request.dy, k.tile, denominators, scratch);
      by.add_own_queries(k, later, q.rotated, u, own, k.last && g == heads.first);
      if (normalizes<L> && request.own_keys())
        add_weighted_rows<A>(own.features,
                             tile_offsets(e, unit.memory.grad_denominators, g, k.block, k.tile),
                             q.features);
    }
    if (normalizes<L> && request.own_keys()) {
      // dK_j / m_ii = w + sum over t >= j of c_t Q_t, which w becomes
      A* const running = scratch.own.grad_running.data + matrix * e.feature_dim;
      for (Index t = own.features.rows - 1; t >= 0; --t) {
        add_scaled_row<A>(running, A(1), own.features.row(t), e.feature_dim);
        copy_row(own.features.row(t), running, e.feature_dim);
      }
    }
    if (request.mixing())
      unit.memory.grad_mixing.row(matrix)[unit.plan.own_entry(k.block)] +=
          inner_product<A>(k.features.rotated, own.rotated) +
          inner_product<A>(k.features.features, own.features);
    const A own_weight = unit.own_weight(matrix, k.block);
    if (request.gradients.key.wanted) {
      add_scaled(k.gradients.rotated, own_weight, own.rotated);
      if constexpr (normalizes<L>) add_scaled(k.gradients.features, own_weight, own.features);
    }
    if (request.gradients.value.wanted) add_scaled(k.gradients.values, own_weight, own.values);
  }
}

/// dk and dv of key block b of the unit, from its dS and dz; under Causal also m_bb's gradient.
template <class By, class L = typename By::Variant, class A = typename By::A>
void summarize_block_gradient(const By& by, Index b, const typename By::Mixtures& mixed,
                              const SlotScratch<A>& scratch) {
  const auto& unit = by.unit;
  const auto& request = by.request;
  const Extents& e = unit.extents();
  const BlockSpan& block = unit.keys[b];
  const auto keys = unit.key_rows(unit.operands.k);
  const auto key_results = unit.key_rows(request.gradients.key.view);
  const auto value_results = unit.key_rows(request.gradients.value.view);
  const bool values_in_one_step = !is_causal_within_block<L> && By::stores_products &&
                                  is_in_place<A>(value_results) &&
                                  request.update == Update::overwrite;
  const auto grad = by.block_gradient(mixed, b, scratch);
  std::fill_n(scratch.own.grad_running.data, scratch.own.grad_running.size, A(0));
  // In reverse: under Causal, later queries send gradients back to earlier keys.
  for (Index t = block.first_tile + block.tiles - 1; t >= block.first_tile; --t) {
    const TokenTile& tile = unit.keys.table.tiles[t];
    const auto k =
        by.pack_key_tile({b, tile, t == block.first_tile, t + 1 == block.first_tile + block.tiles,
                          scratch, gradient_panels(unit, scratch, tile.tokens)});
    Prefetch results = prefetch_tile(unit.keys, t, {value_results, key_results});
    Prefetch next = prefetch_tile(unit.keys, t - 1, {keys, unit.key_rows(unit.operands.v)});
    if constexpr (std::is_same_v<typename By::Mixtures, SummaryRows<A>>)
      prefetch_summary(mixed, b + 1, t - block.first_tile, block.tiles, results);
    if (request.gradients.key.wanted) by.key_gradient(k, grad, &results);
    if (request.gradients.value.wanted)
      by.value_gradient(k, grad, values_in_one_step ? &value_results : nullptr, &next);
    if constexpr (is_causal_within_block<L>) {
      for (Index r = 0; r < k.gradients.features.rows; ++r)
        copy_row(k.gradients.features.row(r), grad.key_sum.data, e.feature_dim);
      add_own_tile_gradient(by, k);
    }
    if (request.gradients.value.wanted && !values_in_one_step)
      scatter<typename By::Scalar, A>(unit.keys.table, tile, k.gradients.values, {}, value_results,
                                      request.update);
    FeatureGradients<A> total{k.gradients.rotated};
    if (normalizes<L>)
      total.unrotated =
          is_causal_within_block<L> ? k.gradients.features.placed() : every_row(grad.key_sum);
    if (request.gradients.key.wanted)
      unpack_feature_gradient(key_features(unit, tile), total, key_results, request.update,
                              scratch.row);
  }
}

/// dk and dv of every key block of the unit; under Causal also the diagonal of dmix.
template <class By, class L = typename By::Variant>
void summarize_unit_gradient(const By& by, const ExecutorRef& loop) {
  const auto& unit = by.unit;
  const Index blocks = unit.keys.blocks;
  const Into into = unit.extents().matrices > 1 ? Into::add : Into::overwrite;
  const RowGroups groups = is_structured<L>
                               ? RowGroups(blocks, 1)
                               : shared_row_groups<L>(unit.extents(), blocks, unit.queries.blocks,
                                                      into, loop.num_slots(), unit.in_pairs);
  loop.parallel_for(groups.count, [&](Index group, Index slot) MHLA_ONCE_A_CALL {
    const auto& scratch = unit.plan.scratch[slot];
    typename By::Mixtures grad{mix_group_gradient(unit, by.request, groups, group, scratch)};
    if constexpr (!is_structured<L> && requires { grad.paired; })
      grad.paired = by.mix_back(grad, scratch.pairs);
    for (Index b = groups.begin(group); b < groups.begin(group + 1); ++b)
      summarize_block_gradient(by, b, grad, scratch);
  });
}

/// All wanted gradients of one unit.
template <class By, class L = typename By::Variant>
MHLA_ONCE_A_CALL void backward_unit(const By& by, const ExecutorRef& loop) {
  const auto& unit = by.unit;
  const auto& request = by.request;
  if constexpr (mixes_products<L>) mixed_products_of_unit(unit, loop);
  read_out_unit_gradient(by, loop, [&]([[maybe_unused]] Index matrix) {
    if constexpr (is_structured<L>)
      if (request.mixed_summaries()) mix_unit_gradient(unit, matrix, request.mixing(), loop);
  });
  if (!is_structured<L> && request.mixing()) add_mixing_gradient(by, loop);
  if constexpr (mixes_products<L>) {
    if (request.query() || request.gradients.key.wanted)
      mixed_products_of_unit_gradient(unit, request, loop);
  }
  if (request.keys() || (is_causal_within_block<L> && request.mixing()))
    summarize_unit_gradient(by, loop);
}

namespace exact {

template <class L, class T>
struct Backward : Forward<L, T> {
  using A = Accumulator<T>;
  using typename Forward<L, T>::Mixtures;
  using typename Forward<L, T>::Tile;
  using OwnKeys = KeyTile<A>;
  static constexpr bool stores_products = std::is_same_v<T, A>;

  const BackwardRequest<L, T>& request;
  using Forward<L, T>::unit;

  /// A block without tokens sends nothing back.
  void end_block(Index matrix, Index i, const SlotScratch<A>&) const {
    const SummaryRows<A> grad = mixed_gradients(unit, matrix);
    if (unit.queries[i].tiles == 0) set_zero(grad.summary(i), grad.key_sum(i));
  }
  /// dS~_i^T (+)= U^T Q^r
  void add_summary_gradient(const Tile& at, const Panel<A>& rotated, const Panel<const A>& u,
                            bool first, bool, Prefetch* prefetch) const {
    prefetch_summary(at.mixed, at.block + 1, at.part(), at.parts(), *prefetch);
    multiply_left_transposed<A>(mixed_gradients(unit, at.matrix).summary(at.block), u, rotated,
                                first ? Into::overwrite : Into::add, prefetch);
  }
  /// dQ^r
  Panel<A> query_gradient(const Tile& at, Index g, const Panel<const A>& u,
                          Prefetch* prefetch) const {
    Panel<A> grad = panel(at.scratch.grad_features.data, u.rows, unit.extents().feature_dim);
    if constexpr (mixes_products<L>) grad = waiting_query_features(unit, g, at.block, at.tile());
    prefetch_summary(mixed_gradients(unit, at.matrix), at.block + 1, at.part(), at.parts(),
                     *prefetch);
    multiply_into_rows<A>(grad.placed(), u, at.summary, {}, prefetch);
    if constexpr (is_causal_within_block<L>) {  // tril(U V^T) (m_ii K^r)
      multiply_right_transposed<A>(at.own.scores, at.own.values, u);
      multiply_lower<A>(grad, at.own.scores, at.own.rotated, Into::add);
    }
    return grad;
  }

  /// dm += <dS~, S> + <dz~, z>, or C R^T, for some columns: key blocks from `first` on.
  MHLA_ONCE_A_CALL void add_mixing_gradient(const Panel<A>& columns, Index matrix, Index first,
                                            const SlotScratch<A>& scratch) const {
    const MatrixRows rows{unit.plan.problem.queries.first,
                          unit.queries.blocks + unit.other_queries};
    const auto add = [&](const Panel<A>& grad_mixed, const Panel<A>& from) {
      mix_matrix_gradient<sight_of<L>, A>(
          grad_mixed, rows, first, from.row_range(first, columns.cols), columns, scratch.triangle);
    };
    const SummaryRows<A> grad = mixed_gradients(unit, matrix);
    add(grad.summaries, unit.summaries.summaries);
    if constexpr (mixes_key_sums<L>) add(grad.key_sums, unit.summaries.key_sums);
    if constexpr (mixes_products<L>) mixed_products_matrix_gradient(unit, matrix, first, columns);
  }
  BlockGradient<A, Panel<A>> block_gradient(const Mixtures& mixed, Index b,
                                            const SlotScratch<A>& scratch) const {
    const Extents& e = unit.extents();
    BlockGradient<A, Panel<A>> grad{mixed.summary(b),
                                    panel(scratch.transposed.data, e.feature_dim, e.value_dim),
                                    mixed.key_sum(b)};
    if constexpr (mixes_products<L>)
      grad.key_sum = {unit.memory.grad_key_sums.data + b * e.feature_dim, e.feature_dim};
    if (request.gradients.value.wanted) transpose<A>(grad.not_transposed, grad.transposed);
    return grad;
  }

  /// Under Causal the tile's own queries meanwhile pass through the slot's panels.
  OwnKeys pack_key_tile(OwnKeys k) const {
    const TilePanels<A>& usual = k.scratch;
    const TilePanels<A>& panels = is_causal_within_block<L> ? k.scratch.own : usual;
    k.features = pack_features(key_features(unit, k.tile), k.scratch, panels);
    k.keys = k.features.rotated;
    k.values =
        readable_panel<T>(unit.keys.table, k.tile, unit.key_rows(unit.operands.v), panels.values);
    return k;
  }
  void key_gradient(const OwnKeys& k, const auto& grad, Prefetch* prefetch) const {
    multiply_into_rows<A>(k.gradients.rotated.placed(), k.values, grad.transposed, {}, prefetch);
  }
  /// In the tensor itself if `in_place`.
  void value_gradient(const OwnKeys& k, const auto& grad, const TokenRows<T>* in_place,
                      Prefetch* prefetch) const {
    const Rows<A> results = in_place != nullptr
                                ? in_place_of_products<A>(unit.keys.table, k.tile, *in_place)
                                : k.gradients.values.placed();
    multiply_into_rows<A>(results, k.keys, grad.not_transposed, {}, prefetch);
  }

  // Of the tile's own block, under Causal:
  void take_later_gradients(const OwnKeys& k, const Panel<A>& later,
                            const KeyGradients<A>& own) const {
    if (request.own_keys()) multiply_into_rows<A>(own.rotated.placed(), k.values, later);
    if (request.gradients.value.wanted) multiply_right_transposed<A>(own.values, k.keys, later);
  }
  void add_own_queries(const OwnKeys& k, const Panel<A>& later, const Panel<A>& rotated,
                       const Panel<const A>& u, const KeyGradients<A>& own, bool starts) const {
    const Panel<A> scores = panel(k.scratch.own.scores.data, u.rows, u.rows);
    if (request.own_keys()) {  // tril(U V^T)^T Q^r
      multiply_right_transposed<A>(scores, u, k.values);
      multiply_lower_transposed<A>(own.rotated, scores, rotated, Into::add);
    }
    if (request.gradients.value.wanted) {  // tril(Q^r K^r^T)^T U
      multiply_right_transposed<A>(scores, rotated, k.keys);
      multiply_lower_transposed<A>(own.values, scores, u, Into::add);
    }
    if (!k.first)  // an earlier tile needs it
      multiply_left_transposed<A>(later, u, rotated, starts ? Into::overwrite : Into::add);
  }
};

}  // namespace exact
}  // namespace cpu

MHLA_NAMESPACE_END
