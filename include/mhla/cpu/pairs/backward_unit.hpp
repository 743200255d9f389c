// SPDX-License-Identifier: MIT
// The backward pass of one unit with Precision::fast: the stages of backward_unit.hpp, whose
// products have factors rounded to bfloat16 and sums in float. Summaries are transposed,
// [value_dim, feature_dim].
//
// With a normalizer all products are of v less a mean of v: dq, dk and dmix are differences of what
// v and y contribute, which a common mean does not change but would lose to the rounding. With v =
// w + mu
//
//   y_t = w's y_t + mu (1 - epsilon / den_t)
//
// and so the gradient of den_t is that of w's, plus <U_t, mu> epsilon / den_t.
#pragma once

#include <algorithm>
#include <cmath>
#include <mhla/core/config.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/backward_unit.hpp>
#include <mhla/cpu/pairs/forward_unit.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {
namespace pairs {

/// mu: the mean of a unit's values, 0 where that is not finite; null without a normalizer. Any mu
/// is right, but dq and dmix lose what it differs from the mean.              // [value_dim]
template <class L>
const float* mean_of_values(const Operands<L, BFloat16>& operands, const Unit<float>& unit,
                            const ExecutorRef& loop) {
  if constexpr (!normalizes<L>) return nullptr;
  const BlockTable& table = operands.plan.tables.keys;
  const TokenRows<const BFloat16> values = key_rows(unit, operands.v);
  const LongSum<float> mean{unit.memory.value_mean};
  mean.set_zero();
  loop.parallel_for(1, [&](Index, Index slot) {
    Index tokens = 0;
    for (Index b = 0; b < unit.keys.blocks; ++b) {
      const BlockSpan& block = table.blocks[unit.keys.first_block + b];
      for (Index t = block.first_tile; t < block.first_tile + block.tiles; ++t) {
        const TokenTile& tile = table.tiles[t];
        tokens += tile.tokens;
        if (is_in_place<float>(values)) {
          add_rows(mean.sum, in_place(table, tile, values), tile.tokens);
          continue;
        }
        const Panel<float> rows =
            panel(operands.plan.scratch[slot].values.data, tile.tokens, values.dim);
        gather<BFloat16, float>(table, tile, values, {}, rows);
        cpu::add_rows<float>(mean, 1.0f, rows, Into::add);
      }
    }
    for (Index c = 0; c < mean.sum.size; ++c) {
      mean.sum[c] /= static_cast<float>((std::max)(tokens, Index{1}));
      if (!(std::isfinite)(mean.sum[c])) mean.sum[c] = 0;
    }
  });
  return mean.sum.data;
}

/// S^T and z of a unit from where a forward pass left them.
template <class L>
void take_up_summaries(const Plan<L, float>& plan, const Unit<float>& unit, const float* mean,
                       const float* saved, const ExecutorRef& loop) {
  const Extents& e = plan.extents;
  const PairedSummaries summaries = summaries_of(plan, unit);
  const float* const saved_key_sums = saved + e.key_blocks * e.summary_stride();
  loop.parallel_for(pairs_of(unit.keys.blocks), [&](Index pair, Index slot) {
    const PairScratch& scratch = plan.scratch[slot].pairs;
    summaries.clear_end(2 * pair);
    for (Index b = 2 * pair; b < (std::min)(2 * pair + 2, unit.keys.blocks); ++b) {
      const Span<float> key_sum = unit.summaries.key_sum(b);
      copy_row(key_sum.data, saved_key_sums + b * key_sum.size, key_sum.size);
      const Panel<float> sums = whole_panel(scratch.summary.data, e.value_dim, e.feature_dim);
      transpose(sums, panel(saved + b * e.summary_stride(), e.feature_dim, e.value_dim));
      for (Index c = 0; mean != nullptr && c < e.value_dim; ++c)
        add_scaled_row(sums.row(c), -mean[c], static_cast<const float*>(key_sum.data),
                       e.feature_dim);
      round_into_half(summaries.with(b), static_cast<int>(b % 2), sums);
    }
    if constexpr (sees_past_only<L>) note_finite(summaries, 2 * pair, unit.memory.finite_summaries);
  });
}

/// dS~^T of one mixing matrix of the unit, all query blocks.
template <class L>
PairedSummaries mixed_gradients(const Plan<L, float>& plan, const Unit<float>& unit, Index matrix) {
  const SummaryShape shape = plan.summary_shape();
  return {unit.memory.paired_gradients.data +
              matrix * PairedSummaries::size(shape, plan.extents.query_blocks),
          unit.queries.blocks, shape};
}
/// Whether the pairs of it are finite.
template <class L>
Span<Pair> finite_gradients(const Plan<L, float>& plan, const Unit<float>& unit, Index matrix) {
  const Index pairs = pairs_of(plan.extents.query_blocks);
  return {unit.memory.finite_gradients.data + matrix * pairs, pairs};
}

/// A sum over the tiles and heads of a block, of which only the last step rounds.
struct SummarySteps {
  Panel<float> sums;
  PairPanel result;
  int half;

  void add(const LeftFactor& a, const PairPanel& b, bool first, bool last,
           Prefetch* prefetch) const {
    if (last)
      return multiply_into_half(result, half, a, b, first ? Panel<float>{} : sums, prefetch);
    multiply(sums, a, b, first ? Into::overwrite : Into::add, prefetch);
  }
};

/// dq of one tile of query head g, and what it adds to dS~^T and dz~. `summary` is S~^T, under
/// Causal P^T.
template <class L>
void read_out_tile_gradient(const Operands<L, BFloat16>& operands,
                            const BackwardRequest<L, BFloat16>& request, const Unit<float>& unit,
                            const QueryTile<float>& at, Index g, const PairPanel& summary,
                            const float* mean) {
  const Plan<L, float>& plan = operands.plan;
  const Extents& e = plan.extents;
  const BlockTable& table = plan.tables.queries;
  const TokenTile& tile = table.tiles[at.index];
  const BlockSpan& block = table.blocks[unit.queries.first_block + at.block];
  const PairScratch& scratch = at.scratch.pairs;
  const TokenRows<const BFloat16> queries = query_rows(plan, unit, g, operands.q);
  const TokenRows<const BFloat16> grad_outputs = query_rows(plan, unit, g, request.dy);
  const TokenRows<BFloat16> results = query_rows(plan, unit, g, request.gradients.query.view);
  const FeaturePanels<float> q = pack_query_tile(operands, unit, g, tile, at.scratch);
  const Span<const float> denominators = tile_denominators(operands, unit, at, g, q.features);
  const Panel<const float> u =
      pack_grad_numerators(operands, grad_outputs, tile, denominators, at.scratch);
  const auto heads = plan.heads_of(at.matrix);
  const bool first = at.index == block.first_tile && g == heads.first;
  const bool last = at.index + 1 == block.first_tile + block.tiles && g + 1 == heads.last;
  Prefetch now = prefetch_tile(table, unit.queries, at.index, {results});
  Prefetch next = prefetch_tile(table, unit.queries, at.index + 1, {queries, grad_outputs});
  if (request.mixed_summaries()) {
    const PairedSummaries grad = mixed_gradients(plan, unit, at.matrix);
    const SummarySteps steps{whole_panel(scratch.summary_gradient.data, e.value_dim, e.feature_dim),
                             grad.with(at.block), static_cast<int>(at.block % 2)};
    steps.add(LeftFactor::transposed(pair_tokens(u, scratch.values)),
              pair_tokens(q.rotated, scratch.features), first, last, &next);
  }
  if constexpr (keeps_denominators<L>)
    copy_row(tile_offsets(e, unit.memory.denominators, g, at.block, tile).data, denominators.data,
             tile.tokens);
  if (!request.query_features()) return;

  const PairedRows u_rows = pair_features(u, scratch.value_rows);
  const Panel<float> sums = whole_panel(scratch.tile.data, tile.tokens, e.feature_dim);
  multiply(sums, u_rows, summary, Into::overwrite, &now);
  if constexpr (masks_own_block<L>) {
    const PairedRows scores = multiply_scores(
        scratch.scores, u_rows, pair_panel(scratch.columns.data, e.value_dim, tile.tokens));
    add_triangle(sums, scores, pair_panel(scratch.own_keys.data, tile.tokens, e.feature_dim), {1});
  }

  FeatureGradients<float> total{sums.col_range(0, e.feature_dim)};
  if constexpr (normalizes<L>) {
    Span<float> c{at.scratch.grad_denominators.data, tile.tokens};
    if constexpr (keeps_denominators<L>)
      c = tile_offsets(e, unit.memory.grad_denominators, g, at.block, tile);
    denominator_gradient<float>(q.rotated, total.rotated, denominators, c);
    const auto epsilon = static_cast<float>(operands.variant.normalizer.epsilon);
    for (Index t = 0; t < tile.tokens; ++t) {
      constexpr float least = 1e-7f;  // of den, that shows in a float
      if (denominators[t] == 0 || !((std::abs)(epsilon) > least * (std::abs)(denominators[t])))
        continue;
      c[t] += epsilon / denominators[t] *
              inner_product<float>(u.row_range(t, 1), {mean, 1, e.value_dim, e.value_dim});
    }
    if (request.mixed_summaries())
      read_out_key_sum_gradient<float>(
          q.features, c, cpu::mixed_gradients(plan, unit, at.matrix).key_sum(at.block),
          first ? Into::overwrite : Into::add);
    total.weights = c;
    total.unrotated = every_row(at.mixed.key_sum(at.block));
    if (masks_own_block<L>) total.unrotated = at.own.key_sums.placed();
  }
  if (request.query())
    unpack_feature_gradient(operands.variant.feature_map, plan.rotation, operands.scale(), table,
                            tile, queries, total, results, request.update, at.scratch.row);
}

/// The keys and values of a causal query tile's own block: v, its transpose, and m_ii phi(k).
template <class L>
OwnTile<float> pack_own_tile_transposed(const Operands<L, BFloat16>& operands,
                                        const Unit<float>& unit, const TokenTile& tile,
                                        float own_weight, Span<float> running_key_sum,
                                        const float* mean, const SlotScratch<float>& scratch) {
  const OwnTile<float> own =
      pack_own_keys(operands, unit, tile, own_weight, running_key_sum, scratch);
  const BlockTable& table = operands.plan.tables.queries;
  const TokenRows<const BFloat16> values = key_rows(unit, operands.v);
  pair_tokens(own.rotated, scratch.pairs.own_keys);
  pack_values(table, tile, values, mean, scratch.values, scratch.pairs.own_values);
  transposed(pack_value_rows(table, tile, values, mean, scratch.values, scratch.pairs.value_rows),
             scratch.pairs.columns);
  return own;
}

/// dq, dS~^T and dz~ of every query block of the unit.
template <class L>
void read_out_unit_gradient(const Operands<L, BFloat16>& operands,
                            const BackwardRequest<L, BFloat16>& request, const Unit<float>& unit,
                            const float* mean, const ExecutorRef& loop) {
  const Plan<L, float>& plan = operands.plan;
  const Extents& e = plan.extents;
  const BlockTable& table = plan.tables.queries;
  const RowGroups groups =
      paired_groups<L>(e, unit.queries.blocks, unit.keys.blocks, loop.num_slots());
  loop.parallel_for(groups.count, [&](Index group, Index slot) {
    const SlotScratch<float>& scratch = plan.scratch[slot];
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      const PairedSummaries grad = mixed_gradients(plan, unit, matrix);
      const SummaryRows<float> key_sums =
          cpu::mix_group(plan, unit, matrix, groups, group, scratch, false);
      MixedSummaries mixed;
      if (request.query_features())
        mixed = mix_group(plan, unit, matrix, groups, group, scratch.pairs);
      for (Index i = groups.begin(group); i < groups.begin(group + 1); ++i) {
        const BlockSpan& block = table.blocks[unit.queries.first_block + i];
        const Index end = block.first_tile + block.tiles;
        if (i % 2 == 0) grad.clear_end(i);
        if (block.tiles == 0) {
          const Panel<float> nothing =
              whole_panel(scratch.pairs.summary_gradient.data, e.value_dim, e.feature_dim);
          set_zero(nothing, cpu::mixed_gradients(plan, unit, matrix).key_sum(i));
          round_into_half(grad.with(i), static_cast<int>(i % 2), nothing);
        }
        PairPanel summary = mixed.of(i - groups.begin(group));
        for (Index t = block.first_tile; t < end; ++t) {
          QueryTile<float> at{matrix, i, t, key_sums, scratch};
          if constexpr (masks_own_block<L>)
            at.own = pack_own_tile_transposed(operands, unit, table.tiles[t],
                                              own_weight(plan, unit, matrix, i),
                                              key_sums.key_sum(i), mean, scratch);
          for (Index g = plan.heads_of(matrix).first; g < plan.heads_of(matrix).last; ++g)
            read_out_tile_gradient(operands, request, unit, at, g, summary, mean);
          if constexpr (masks_own_block<L>)
            if (request.query_features() && t + 1 < end)
              summary = absorb_own_tile(
                  pair_panel(scratch.pairs.own_values.data, table.tiles[t].tokens, e.value_dim),
                  pair_panel(scratch.pairs.own_keys.data, table.tiles[t].tokens, e.feature_dim),
                  summary, t == block.first_tile, scratch.pairs);
        }
        if constexpr (sees_past_only<L>)
          if (i % 2 == 1 || i + 1 == unit.queries.blocks)
            note_finite(grad, i, finite_gradients(plan, unit, matrix));
      }
    }
  });
}

/// Adds the unit's part of dmix to `grad_mixing` [matrices, query blocks, key blocks].
template <class L>
void mix_unit_matrix_gradient(const Operands<L, BFloat16>& operands, const Unit<float>& unit,
                              float* grad_mixing, const ExecutorRef& loop) {
  const Plan<L, float>& plan = operands.plan;
  const Extents& e = plan.extents;
  const Index most = matrix_gradient_cols(unit.keys.blocks);
  loop.parallel_for(ceil_div(unit.keys.blocks, most), [&](Index task, Index slot) {
    const Index first = task * most;
    const Index count = (std::min)(most, unit.keys.blocks - first);
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      const Panel<float> result{grad_mixing + matrix * e.query_blocks * e.key_blocks,
                                unit.queries.blocks, unit.keys.blocks, e.key_blocks};
      mix_matrix_gradient(mixed_gradients(plan, unit, matrix), summaries_of(plan, unit), first,
                          count, !sees_past_only<L>, lag_of(sight_of<L>), result);
      if constexpr (mixes_key_sums<L>) {
        const Panel<float> grad = cpu::mixed_gradients(plan, unit, matrix).key_sums;
        const Panel<float> key_sums = unit.summaries.key_sums.row_range(first, count);
        if constexpr (sees_past_only<L>) {
          mix_past_matrix_gradient<float>(grad, {0, grad.rows}, first, lag_of(sight_of<L>),
                                          key_sums, result.col_range(first, count),
                                          plan.scratch[slot].triangle);
        } else {
          cpu::mix_matrix_gradient<float>(grad, key_sums, result.col_range(first, count),
                                          grad.rows);
        }
      }
    }
  });
}

/// dS^T of a group of key blocks, in the scratch of a slot.
template <class L>
MixedSummaries mix_group_gradient(const Plan<L, float>& plan, const Unit<float>& unit,
                                  const RowGroups& groups, Index group,
                                  const PairScratch& scratch) {
  const Extents& e = plan.extents;
  const Index first = groups.begin(group);
  const Index rows = groups.size(group);
  const MixedSummaries grad{scratch.mixed.data, rows, plan.summary_shape()};
  if (e.matrices == 0)  // no query head reads this kv head
    std::fill_n(grad.data, rows * MixedSummaries::stride(grad.shape), Pair{0});
  if (e.matrices == 0) return grad;
  const auto terms_of = [&](Index index) {
    const Index matrix = index / plan.mixing_parts;
    const PairedRows weights = plan.transposed_mixing_of(
        index % plan.mixing_parts, unit_matrix(plan, unit, matrix), unit.queries.blocks);
    return MixingTerms{PairedRows{weights.row(first), rows, weights.cols, weights.stride},
                       mixed_gradients(plan, unit, matrix),
                       finite_gradients(plan, unit, matrix).data};
  };
  mix(grad, e.matrices * plan.mixing_parts, terms_of,
      MixedBlocks{!sees_past_only<L>, {first + lag_of(sight_of<L>), true}}, scratch.mixed_sums);
  return grad;
}

/// A tile of key block `block` at work on a slot, its factors, and what its gradients are summed
/// in.
struct KeyTile {
  Index block;
  const TokenTile& tile;
  bool first;  // of its block
  bool last;
  const SlotScratch<float>& scratch;
  FeaturePanels<float> features;  // phi(k), of Causal alone
  PairedRows keys;                // phi(k), rotated
  PairedRows values;              // v
  KeyGradients<float> gradients;  // rows of whole vectors; dK under Causal, else it is dz_b for all
};

/// What the queries of a key tile's own block send back to it (Causal), as add_own_tile_gradient of
/// backward_unit.hpp. Tiles are visited from last to first.
template <class L>
void add_own_tile_gradient(const Operands<L, BFloat16>& operands,
                           const BackwardRequest<L, BFloat16>& request, const Unit<float>& unit,
                           const KeyTile& k, float* grad_mixing) {
  const Plan<L, float>& plan = operands.plan;
  const Extents& e = plan.extents;
  const SlotScratch<float>& scratch = k.scratch;
  const PairScratch& pairs = scratch.pairs;
  const Index tokens = k.tile.tokens;
  const Index half = pairs_of(e.value_dim);
  const Panel<float> own_keys = whole_panel(pairs.own_key_gradients.data, tokens, e.feature_dim);
  const Panel<float> own_values = whole_panel(pairs.own_value_gradients.data, tokens, e.value_dim);
  const Panel<float> own_key_sums =
      panel(scratch.own.grad_key_sums.data, normalizes<L> ? tokens : 0, e.feature_dim);
  const bool keys_wanted = request.gradients.key.wanted || request.mixing();
  for (Index matrix = 0; matrix < e.matrices; ++matrix) {
    const Index cols = whole_columns(e.feature_dim);
    const Panel<float> grad_summary = {pairs.own_gradients.data + matrix * 2 * half * cols,
                                       2 * half, cols, cols};
    if (k.last) {  // no later tile has contributed to dP
      set_zero(own_keys);
      set_zero(own_values);
    } else {
      const PairPanel later = pair_panel(pairs.running.data, e.value_dim, e.feature_dim);
      const PairPanel turned = pair_panel(pairs.own_turned.data, e.feature_dim, e.value_dim);
      pair_sums(later, grad_summary.row_range(0, half), grad_summary.row_range(half, half));
      turn(turned, later);
      multiply(own_keys, k.values, later, Into::overwrite);
      multiply(own_values, k.keys, turned, Into::overwrite);
    }
    set_zero(own_key_sums);

    const auto heads = plan.heads_of(matrix);
    for (Index g = heads.first; g < heads.last; ++g) {
      const FeaturePanels<float> q = pack_query_tile(operands, unit, g, k.tile, scratch);
      Span<const float> denominators;
      if constexpr (normalizes<L>)
        denominators = tile_offsets(e, unit.memory.denominators, g, k.block, k.tile);
      const Panel<const float> u = pack_grad_numerators(
          operands, query_rows(plan, unit, g, request.dy), k.tile, denominators, scratch);
      const PairPanel u_tokens = pair_tokens(u, pairs.values);
      const PairPanel q_tokens = pair_tokens(q.rotated, pairs.features);
      const Triangle future{0, true};
      if (keys_wanted)
        add_triangle(own_keys,
                     multiply_scores(pairs.scores, k.values,
                                     transposed(pair_features(u, pairs.value_rows), pairs.columns)),
                     q_tokens, future);
      if (request.gradients.value.wanted)
        add_triangle(own_values,
                     multiply_scores(
                         pairs.scores, k.keys,
                         transposed(pair_features(q.rotated, pairs.feature_rows), pairs.columns)),
                     u_tokens, future);
      if (normalizes<L> && keys_wanted)
        add_weighted_rows<float>(own_key_sums,
                                 tile_offsets(e, unit.memory.grad_denominators, g, k.block, k.tile),
                                 q.features);
      if (!k.first) {  // an earlier tile needs it
        const bool starts = k.last && g == heads.first;
        if (starts) set_zero(grad_summary);
        multiply(grad_summary.row_range(0, e.value_dim), LeftFactor::transposed(u_tokens), q_tokens,
                 Into::add);
      }
    }
    if (normalizes<L> && keys_wanted)
      accumulate_backwards<float>(
          own_key_sums, {scratch.own.grad_running.data + matrix * e.feature_dim, e.feature_dim});
    add_own_gradients(request, own_weight(plan, unit, matrix, k.block), k.features,
                      KeyGradients<float>{own_keys, own_key_sums, own_values}, k.gradients,
                      grad_mixing + matrix * plan.matrix_size + plan.own_entry(k.block));
  }
}

// Under Causal the tile's own queries meanwhile pass through the slot's panels.
template <class L>
KeyTile pack_key_tile(const Operands<L, BFloat16>& operands, const Unit<float>& unit, Index b,
                      Index index, const float* mean, const SlotScratch<float>& scratch) {
  const Plan<L, float>& plan = operands.plan;
  const Extents& e = plan.extents;
  const BlockTable& table = plan.tables.keys;
  const BlockSpan& block = table.blocks[unit.keys.first_block + b];
  const TokenTile& tile = table.tiles[index];
  const PairScratch& pairs = scratch.pairs;
  const TokenRows<const BFloat16> keys = key_rows(unit, operands.k);
  KeyTile k{b,
            tile,
            index == block.first_tile,
            index + 1 == block.first_tile + block.tiles,
            scratch,
            {},
            {},
            pack_value_rows(table, tile, key_rows(unit, operands.v), mean, scratch.values,
                            masks_own_block<L> ? pairs.key_value_rows : pairs.value_rows),
            {}};
  if constexpr (masks_own_block<L>) {
    k.features = {panel((normalizes<L> ? scratch.own.features : scratch.own.rotated).data,
                        tile.tokens, e.feature_dim),
                  panel(scratch.own.rotated.data, tile.tokens, e.feature_dim)};
    pack_features(operands.variant.feature_map, plan.rotation, 1.0f, table, tile, keys,
                  k.features.features, k.features.rotated, scratch.row);
    k.keys = pair_features(k.features.rotated, pairs.key_rows);
    k.gradients = {
        whole_panel(pairs.tile.data, tile.tokens, e.feature_dim),
        panel(scratch.grad_unrotated.data, normalizes<L> ? tile.tokens : 0, e.feature_dim),
        whole_panel(pairs.value_gradients.data, tile.tokens, e.value_dim)};
  } else {
    k.keys = pack_key_rows(operands, tile, keys, scratch);
    k.gradients = {whole_panel(pairs.tile.data, tile.tokens, e.feature_dim),
                   {},
                   whole_panel(pairs.value_gradients.data, tile.tokens, e.value_dim)};
  }
  return k;
}

/// dk and dv of every key block of the unit; under Causal also the diagonal of dmix.
template <class L>
void summarize_unit_gradient(const Operands<L, BFloat16>& operands,
                             const BackwardRequest<L, BFloat16>& request, const Unit<float>& unit,
                             const float* mean, float* grad_mixing, const ExecutorRef& loop) {
  const Plan<L, float>& plan = operands.plan;
  const Extents& e = plan.extents;
  const BlockTable& table = plan.tables.keys;
  const TokenRows<const BFloat16> keys = key_rows(unit, operands.k);
  const TokenRows<const BFloat16> values = key_rows(unit, operands.v);
  const TokenRows<BFloat16> key_results = key_rows(unit, request.gradients.key.view);
  const TokenRows<BFloat16> value_results = key_rows(unit, request.gradients.value.view);
  const bool values_in_one_step = !masks_own_block<L> && is_in_place<float>(value_results) &&
                                  request.update == Update::overwrite;
  const RowGroups groups =
      paired_groups<L>(e, unit.keys.blocks, unit.queries.blocks, loop.num_slots());
  loop.parallel_for(groups.count, [&](Index group, Index slot) {
    const SlotScratch<float>& scratch = plan.scratch[slot];
    const SummaryRows<float> key_sums =
        cpu::mix_group_gradient(operands, request, unit, groups, group, scratch, false);
    const MixedSummaries mixed = mix_group_gradient(plan, unit, groups, group, scratch.pairs);
    for (Index b = groups.begin(group); b < groups.begin(group + 1); ++b) {
      const BlockSpan& block = table.blocks[unit.keys.first_block + b];
      const PairPanel grad_transposed = mixed.of(b - groups.begin(group));
      const PairPanel grad = pair_panel(scratch.pairs.turned.data, e.feature_dim, e.value_dim);
      if (request.gradients.value.wanted) turn(grad, grad_transposed);
      std::fill_n(scratch.own.grad_running.data, scratch.own.grad_running.size, 0.0f);
      // In reverse: under Causal, later queries send gradients back to earlier keys.
      for (Index t = block.first_tile + block.tiles - 1; t >= block.first_tile; --t) {
        const KeyTile k = pack_key_tile(operands, unit, b, t, mean, scratch);
        Prefetch results = prefetch_tile(table, unit.keys, t, {value_results, key_results});
        Prefetch next = prefetch_tile(table, unit.keys, t - 1, {keys, values});
        if (request.gradients.key.wanted)
          multiply(k.gradients.rotated, k.values, grad_transposed, Into::overwrite, &results);
        if (request.gradients.value.wanted) {
          if (values_in_one_step) {
            multiply_into_rows(in_place(table, k.tile, value_results), k.keys, grad, {}, &next);
          } else {
            multiply(k.gradients.values, k.keys, grad, Into::overwrite, &next);
          }
        }
        if constexpr (masks_own_block<L>) {
          for (Index r = 0; r < k.gradients.features.rows; ++r)
            copy_row(k.gradients.features.row(r), key_sums.key_sum(b).data, e.feature_dim);
          add_own_tile_gradient(operands, request, unit, k, grad_mixing);
        }
        if (request.gradients.value.wanted && !values_in_one_step)
          scatter<BFloat16, float>(table, k.tile, k.gradients.values.col_range(0, e.value_dim), {},
                                   value_results, request.update);
        if (!request.gradients.key.wanted) continue;
        FeatureGradients<float> total{k.gradients.rotated.col_range(0, e.feature_dim)};
        if (normalizes<L>)
          total.unrotated =
              masks_own_block<L> ? k.gradients.features.placed() : every_row(key_sums.key_sum(b));
        unpack_feature_gradient(operands.variant.feature_map, plan.rotation, 1.0f, table, k.tile,
                                keys, total, key_results, request.update, scratch.row);
      }
    }
  });
}

/// All wanted gradients of one unit. `grad_mixing` is the caller's partial sum of dmix.
template <class L>
void backward_unit(const Operands<L, BFloat16>& operands,
                   const BackwardRequest<L, BFloat16>& request, const Unit<float>& unit,
                   const float* mean, float* grad_mixing, const ExecutorRef& loop) {
  read_out_unit_gradient(operands, request, unit, mean, loop);
  if (request.mixing()) mix_unit_matrix_gradient(operands, unit, grad_mixing, loop);
  if (request.keys() || (masks_own_block<L> && request.mixing()))
    summarize_unit_gradient(operands, request, unit, mean, grad_mixing, loop);
}

}  // namespace pairs
}  // namespace cpu

MHLA_NAMESPACE_END
