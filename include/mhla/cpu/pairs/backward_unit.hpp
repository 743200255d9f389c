// SPDX-License-Identifier: MIT
// The backward pass of one unit with Precision::fast: the stages of backward_unit.hpp, whose
// products have factors rounded to bfloat16 and sums in float. Summaries are transposed,
// [value_dim, feature_dim]. With a normalizer they lack the means that centers.hpp takes out.
#pragma once

#include <algorithm>
#include <cmath>
#include <mhla/core/config.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/backward_unit.hpp>
#include <mhla/cpu/pairs/centers.hpp>
#include <mhla/cpu/pairs/forward_unit.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {
namespace pairs {

/// S^T of a unit from where a forward pass left them, without a normalizer.
template <class L>
void take_up_summaries(const Plan<L, float>& plan, const Unit<float>& unit, const float* saved,
                       const ExecutorRef& loop) {
  const Extents& e = plan.extents;
  const PairedSummaries summaries = summaries_of(plan, unit);
  loop.parallel_for(pairs_of(unit.keys.blocks), [&](Index pair, Index slot) {
    summaries.clear_end(2 * pair);
    for (Index b = 2 * pair; b < (std::min)(2 * pair + 2, unit.keys.blocks); ++b) {
      const Panel<float> sums =
          whole_panel(plan.scratch[slot].pairs.summary.data, e.value_dim, e.feature_dim);
      transpose(sums, panel(saved + b * e.summary_stride(), e.feature_dim, e.value_dim));
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

/// What a tile's gradients are made of, with a normalizer.
struct QueryGradients {
  Panel<const float> u;
  Span<const float> denominators;
  Panel<float> sums;  // dQ^r
  const Centers* centers;
};

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

/// <U_t, mu> epsilon / den_t: what the gradient of den_t has beside that of centered values.
inline void add_center_gradient(const Centers& centers, float epsilon, const Panel<const float>& u,
                                Span<const float> denominators, Span<float> gradient) {
  constexpr float least = 1e-7f;  // of den, that shows in a float
  for (Index t = 0; t < u.rows; ++t)
    if (denominators[t] != 0 && (std::abs)(epsilon) > least * (std::abs)(denominators[t]))
      gradient[t] +=
          epsilon / denominators[t] *
          inner_product<float>(u.row_range(t, 1), {centers.value.data, 1, u.cols, u.cols});
}

/// The normalizer's part of a tile's gradients: completes dQ^r = `sums`, and adds to dz~ and p.
template <class L>
FeatureGradients<float> normalize_tile_gradient(const Operands<L, BFloat16>& operands,
                                                const BackwardRequest<L, BFloat16>& request,
                                                const Unit<float>& unit, const QueryTile<float>& at,
                                                Into into, const FeaturePanels<float>& q,
                                                const QueryGradients& tile) {
  const Plan<L, float>& plan = operands.plan;
  const Extents& e = plan.extents;
  const auto& [u, denominators, sums, centers] = tile;
  const Span<float> weights{at.scratch.inverses.data, u.rows};
  const Span<float> c{at.scratch.grad_denominators.data, u.rows};
  if (centers != nullptr)
    add_mixed_values(*centers, centers->mixed(e, at.matrix, at.block), u, weights, sums);
  denominator_gradient<float>(q.rotated, sums, denominators, c);
  if (centers != nullptr)
    add_center_gradient(*centers, static_cast<float>(operands.variant.normalizer.epsilon), u,
                        denominators, c);
  if (request.mixed_summaries())
    read_out_key_sum_gradient<float>(
        q.features, c, cpu::mixed_gradients(plan, unit, at.matrix).key_sum(at.block), into);
  if (centers != nullptr && request.mixing()) {
    row_products<float>(weights, q.features, Span<const float>(centers->feature));
    weighted_row_sum<float>(centers->gradient(e, at.matrix, at.block), u, weights, into);
  }
  return {sums, c, every_row(at.mixed.key_sum(at.block))};
}

/// dq of one tile of query head g, and what it adds to dS~^T and dz~. `summary` is S~^T, under
/// Causal P^T.
template <class L>
void read_out_tile_gradient(const Operands<L, BFloat16>& operands,
                            const BackwardRequest<L, BFloat16>& request, const Unit<float>& unit,
                            const QueryTile<float>& at, Index g, const PairPanel& summary,
                            const Centers* centers) {
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
  if constexpr (normalizes<L>)
    total =
        normalize_tile_gradient(operands, request, unit, at, first ? Into::overwrite : Into::add, q,
                                {u, denominators, total.rotated, centers});
  if (request.query())
    unpack_feature_gradient(operands.variant.feature_map, plan.rotation, operands.scale(), table,
                            tile, queries, total, results, request.update, at.scratch.row);
}

/// The keys and values of a causal query tile's own block: v, its transpose, and m_ii phi(k).
template <class L>
OwnTile<float> pack_own_tile_transposed(const Operands<L, BFloat16>& operands,
                                        const Unit<float>& unit, const TokenTile& tile,
                                        float own_weight, Span<float> running_key_sum,
                                        const SlotScratch<float>& scratch) {
  const OwnTile<float> own =
      pack_own_keys(operands, unit, tile, own_weight, running_key_sum, scratch);
  const BlockTable& table = operands.plan.tables.queries;
  const TokenRows<const BFloat16> values = key_rows(unit, operands.v);
  pair_tokens(own.rotated, scratch.pairs.own_keys);
  pack_values(table, tile, values, scratch.values, scratch.pairs.own_values);
  transposed(pack_value_rows(table, tile, values, scratch.values, scratch.pairs.value_rows),
             scratch.pairs.columns);
  return own;
}

/// dq, dS~^T and dz~ of every query block of the unit.
template <class L>
void read_out_unit_gradient(const Operands<L, BFloat16>& operands,
                            const BackwardRequest<L, BFloat16>& request, const Unit<float>& unit,
                            const Centers* centers, const ExecutorRef& loop) {
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
          if (centers != nullptr) set_zero(centers->gradients(e, matrix, i + 1).row_range(i, 1));
          round_into_half(grad.with(i), static_cast<int>(i % 2), nothing);
        }
        PairPanel summary = mixed.of(i - groups.begin(group));
        for (Index t = block.first_tile; t < end; ++t) {
          QueryTile<float> at{matrix, i, t, key_sums, scratch};
          if constexpr (masks_own_block<L>)
            at.own = pack_own_tile_transposed(operands, unit, table.tiles[t],
                                              own_weight(plan, unit, matrix, i),
                                              key_sums.key_sum(i), scratch);
          for (Index g = plan.heads_of(matrix).first; g < plan.heads_of(matrix).last; ++g)
            read_out_tile_gradient(operands, request, unit, at, g, summary, centers);
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
                              const Centers* centers, float* grad_mixing, const ExecutorRef& loop) {
  const Plan<L, float>& plan = operands.plan;
  const Extents& e = plan.extents;
  const Index most = matrix_gradient_cols(unit.keys.blocks);
  loop.parallel_for(ceil_div(unit.keys.blocks, most), [&](Index task, Index) {
    const Index first = task * most;
    const Index count = (std::min)(most, unit.keys.blocks - first);
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      const Panel<float> result{grad_mixing + matrix * e.query_blocks * e.key_blocks,
                                unit.queries.blocks, unit.keys.blocks, e.key_blocks};
      mix_matrix_gradient(mixed_gradients(plan, unit, matrix), summaries_of(plan, unit), first,
                          count, !sees_past_only<L>, lag_of(sight_of<L>), result);
      if constexpr (normalizes<L>) {
        const auto add = [&](const Panel<float>& grad, const Panel<float>& from) {
          cpu::mix_matrix_gradient<float>(grad, from.row_range(first, count),
                                          result.col_range(first, count), grad.rows);
        };
        add(cpu::mixed_gradients(plan, unit, matrix).key_sums, unit.summaries.key_sums);
        if (centers != nullptr)
          add(centers->gradients(e, matrix, unit.queries.blocks), centers->sums(unit.keys.blocks));
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
  KeyGradients<float> gradients;  // dK^r and dV, rows of whole vectors
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

    const auto heads = plan.heads_of(matrix);
    for (Index g = heads.first; g < heads.last; ++g) {
      const FeaturePanels<float> q = pack_query_tile(operands, unit, g, k.tile, scratch);
      const Panel<const float> u = pack_grad_numerators(
          operands, query_rows(plan, unit, g, request.dy), k.tile, Span<const float>{}, scratch);
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
      if (!k.first) {  // an earlier tile needs it
        const bool starts = k.last && g == heads.first;
        if (starts) set_zero(grad_summary);
        multiply(grad_summary.row_range(0, e.value_dim), LeftFactor::transposed(u_tokens), q_tokens,
                 Into::add);
      }
    }
    add_own_gradients(request, own_weight(plan, unit, matrix, k.block), k.features,
                      KeyGradients<float>{own_keys, {}, own_values}, k.gradients,
                      grad_mixing + matrix * plan.matrix_size + plan.own_entry(k.block));
  }
}

// Under Causal the tile's own queries meanwhile pass through the slot's panels.
template <class L>
KeyTile pack_key_tile(const Operands<L, BFloat16>& operands, const Unit<float>& unit, Index b,
                      Index index, const SlotScratch<float>& scratch) {
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
            pack_value_rows(table, tile, key_rows(unit, operands.v), scratch.values,
                            masks_own_block<L> ? pairs.key_value_rows : pairs.value_rows),
            {whole_panel(pairs.tile.data, tile.tokens, e.feature_dim),
             {},
             whole_panel(pairs.value_gradients.data, tile.tokens, e.value_dim)}};
  if constexpr (masks_own_block<L>) {
    const Panel<float> features = panel(scratch.own.rotated.data, tile.tokens, e.feature_dim);
    k.features = {features, features};
    pack_features(operands.variant.feature_map, plan.rotation, 1.0f, table, tile, keys,
                  k.features.features, k.features.rotated, scratch.row);
    k.keys = pair_features(k.features.rotated, pairs.key_rows);
  } else {
    k.keys = pack_key_rows(operands, tile, keys, scratch);
  }
  return k;
}

/// dk and dv of every key block of the unit; under Causal also the diagonal of dmix.
template <class L>
void summarize_unit_gradient(const Operands<L, BFloat16>& operands,
                             const BackwardRequest<L, BFloat16>& request, const Unit<float>& unit,
                             const Centers* centers, float* grad_mixing, const ExecutorRef& loop) {
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
      if (centers != nullptr && request.gradients.key.wanted)
        subtract_center(*centers, grad_transposed, key_sums.key_sum(b), scratch.pairs);
      // In reverse: under Causal, later queries send gradients back to earlier keys.
      for (Index t = block.first_tile + block.tiles - 1; t >= block.first_tile; --t) {
        const KeyTile k = pack_key_tile(operands, unit, b, t, scratch);
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
        if constexpr (masks_own_block<L>)
          add_own_tile_gradient(operands, request, unit, k, grad_mixing);
        if (request.gradients.value.wanted && !values_in_one_step)
          scatter<BFloat16, float>(table, k.tile, k.gradients.values.col_range(0, e.value_dim), {},
                                   value_results, request.update);
        if (!request.gradients.key.wanted) continue;
        FeatureGradients<float> total{k.gradients.rotated.col_range(0, e.feature_dim)};
        if (normalizes<L>) total.unrotated = every_row(key_sums.key_sum(b));
        unpack_feature_gradient(operands.variant.feature_map, plan.rotation, 1.0f, table, k.tile,
                                keys, total, key_results, request.update, scratch.row);
      }
    }
  });
}

/// All wanted gradients of one unit, whose summaries lack `centers`, if any. `grad_mixing` is the
/// caller's partial sum of dmix.
template <class L>
void backward_unit(const Operands<L, BFloat16>& operands,
                   const BackwardRequest<L, BFloat16>& request, const Unit<float>& unit,
                   const Centers* centers, float* grad_mixing, const ExecutorRef& loop) {
  read_out_unit_gradient(operands, request, unit, centers, loop);
  if (request.mixing()) mix_unit_matrix_gradient(operands, unit, centers, grad_mixing, loop);
  if (request.keys() || (masks_own_block<L> && request.mixing()))
    summarize_unit_gradient(operands, request, unit, centers, grad_mixing, loop);
}

}  // namespace pairs
}  // namespace cpu

MHLA_NAMESPACE_END
