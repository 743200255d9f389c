// SPDX-License-Identifier: MIT
// The products of a backward pass (backward_unit.hpp) with Precision::fast: factors rounded to
// bfloat16, sums in float. Summaries are transposed, [value_dim, feature_dim]. With a normalizer
// they lack the means that centers.hpp takes out.
#pragma once

#include <mhla/cpu/backward_unit.hpp>
#include <mhla/cpu/pairs/forward.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::pairs {

/// S^T of a unit from where a forward pass left them, without a normalizer.
template <class L>
void take_up_summaries(const Unit<L, BFloat16>& unit, const float* saved, const ExecutorRef& loop) {
  const Extents& e = unit.extents();
  const PairedSummaries summaries = paired_summaries(unit);
  loop.parallel_for(pairs_of(unit.keys.blocks), [&](Index pair, Index slot) {
    summaries.clear_end(2 * pair);
    for (Index b = 2 * pair; b < (std::min)(2 * pair + 2, unit.keys.blocks); ++b) {
      const Panel<float> sums =
          whole_panel(unit.plan.scratch[slot].pairs.summary.data, e.value_dim, e.feature_dim);
      transpose(sums, panel(saved + b * e.summary_stride(), e.feature_dim, e.value_dim));
      finish(summaries.half(b), sums);
    }
    if constexpr (is_causal<L>) summaries.note_finite(2 * pair);
  });
}

/// dS~^T of one mixing matrix of the unit, all query blocks.
template <class L>
PairedSummaries paired_gradients(const Unit<L, BFloat16>& unit, Index matrix) {
  const SummaryShape shape = unit.plan.summary_shape();
  return {unit.memory.paired_gradients.data +
              matrix * PairedSummaries::size(shape, unit.extents().query_blocks),
          unit.queries.blocks, shape};
}

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

/// Adds the unit's part of dmix, [matrices, query blocks, key blocks].
template <class L>
void mix_unit_matrix_gradient(const Unit<L, BFloat16>& unit, const Centers* centers,
                              const ExecutorRef& loop) {
  const Extents& e = unit.extents();
  const Index most = matrix_gradient_cols(unit.keys.blocks);
  loop.parallel_for(ceil_div(unit.keys.blocks, most), [&](Index task, Index) {
    const Index first = task * most;
    const Index count = (std::min)(most, unit.keys.blocks - first);
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      const Panel<float> result{unit.memory.grad_mixing.row(matrix), unit.queries.blocks,
                                unit.keys.blocks, e.key_blocks};
      mix_matrix_gradient(paired_gradients(unit, matrix), paired_summaries(unit), first, count,
                          !is_causal<L>, lag_of(sight_of<L>), result);
      if constexpr (normalizes<L>) {
        const auto add = [&](const Panel<float>& grad, const Panel<float>& from) {
          cpu::mix_matrix_gradient<float>(grad, from.row_range(first, count),
                                          result.col_range(first, count), grad.rows);
        };
        add(mixed_gradients(unit, matrix).key_sums, unit.summaries.key_sums);
        if (centers != nullptr)
          add(centers->gradients.row_range(matrix * e.query_blocks, unit.queries.blocks),
              centers->sums(unit.keys.blocks));
      }
    }
  });
}

/// dS^T of a group of key blocks, in the scratch of a slot.
template <class L>
MixedSummaries mix_group_gradient(const Unit<L, BFloat16>& unit, const RowGroups& groups,
                                  Index group, const PairScratch& scratch) {
  const Plan<L, float>& plan = unit.plan;
  const Extents& e = plan.extents;
  const Index first = groups.begin(group);
  const Index rows = groups.size(group);
  const MixedSummaries grad{scratch.mixed.data, rows, plan.summary_shape()};
  if (e.matrices == 0)  // no query head reads this kv head
    std::fill_n(grad.data, rows * MixedSummaries::stride(grad.shape), Pair{0});
  if (e.matrices == 0) return grad;
  const auto terms_of = [&](Index index) {
    const RoundedRows& mixing = plan.rounded.keys;
    const Index matrix = index / plan.rounded.parts;
    const Index of_unit = unit.matrix_of(matrix);
    return MixingTerms{
        mixing.of(index % plan.rounded.parts, of_unit, first, rows, unit.queries.blocks),
        paired_gradients(unit, matrix), mixing.scales_of(of_unit, first)};
  };
  mix(grad, e.matrices * plan.rounded.parts, terms_of,
      MixedBlocks{!is_causal<L>, {first + lag_of(sight_of<L>), true}}, scratch.mixed_sums);
  return grad;
}

template <class L>
struct Backward : Forward<L> {
  using typename Forward<L>::Mixtures;
  using typename Forward<L>::Tile;
  using OwnKeys = KeyTile<float, PairedRows>;
  /// dS of a key block, transposed and not, and dz.
  struct BlockGradient {
    VnniPanel transposed;
    VnniPanel not_transposed;
    Span<float> key_sum;
  };

  const BackwardRequest<L, BFloat16>& request;
  const Centers* centers;  // of the unit, if its summaries lack them
  using Forward<L>::mixes_in_float;
  using Forward<L>::unit;

  /// The row of query block i in what has a row for every matrix and query block.
  Index row_of(Index matrix, Index i) const { return matrix * unit.extents().query_blocks + i; }

  void begin_block(Index matrix, Index i, bool empty, const SlotScratch<float>& scratch) const {
    const Extents& e = unit.extents();
    if (mixes_in_float()) {
      const SummaryRows<float> grad = mixed_gradients(unit, matrix);
      if (empty) set_zero(grad.summary(i), grad.key_sum(i));
      return;
    }
    const PairedSummaries grad = paired_gradients(unit, matrix);
    if (i % 2 == 0) grad.clear_end(i);
    if (!empty) return;
    const Panel<float> nothing =
        whole_panel(scratch.pairs.summary_gradient.data, e.value_dim, e.feature_dim);
    set_zero(nothing, mixed_gradients(unit, matrix).key_sum(i));
    if (centers != nullptr) set_zero(centers->gradients.row_range(row_of(matrix, i), 1));
    finish(grad.half(i), nothing);
  }
  void end_block(Index matrix, Index i) const {
    if constexpr (is_causal<L>)
      if (!mixes_in_float() && (i % 2 == 1 || i + 1 == unit.queries.blocks))
        paired_gradients(unit, matrix).note_finite(i);
  }

  /// Packs a query tile's own keys and values: v, its transpose, and m_ii phi(k).
  void pack_own_tile(Tile& at) const {
    const SlotScratch<float>& scratch = at.scratch;
    const TokenTile& tile = at.tile();
    pair_tokens(at.own.rotated, scratch.pairs.own_keys);
    pack_values(unit, unit.queries, tile, scratch, scratch.pairs.own_values);
    transposed(pack_value_rows(unit, unit.queries, tile, scratch, scratch.pairs.value_rows),
               scratch.pairs.columns);
  }
  void absorb_own_tile(Tile& at) const {
    const Extents& e = unit.extents();
    const PairScratch& scratch = at.scratch.pairs;
    const Index tokens = at.tile().tokens;
    at.summary = absorb(pair_panel(scratch.own_values.data, tokens, e.value_dim),
                        pair_panel(scratch.own_keys.data, tokens, e.feature_dim), at.summary,
                        at.part() == 0, scratch);
  }

  static void prefetch(const Tile&, Prefetch&, Prefetch&) {}
  /// dS~_i^T (+)= U^T Q^r
  void add_summary_gradient(const Tile& at, const Panel<float>& rotated,
                            const Panel<const float>& u, bool first, bool last,
                            Prefetch* prefetch) const {
    const Extents& e = unit.extents();
    const PairScratch& scratch = at.scratch.pairs;
    const Panel<float> sums =
        whole_panel(scratch.summary_gradient.data, e.value_dim, e.feature_dim);
    const LeftFactor a = pair_tokens(u, scratch.values).transposed();
    const VnniPanel b = pair_tokens(rotated, scratch.features);
    if (last && !mixes_in_float())  // only this step rounds
      return multiply(
          paired_gradients(unit, at.matrix).half(at.block, first ? Panel<float>{} : sums), a, b,
          prefetch);
    multiply(sums, a, b, first ? Into::overwrite : Into::add, prefetch);
    if (!last) return;
    const Panel<float> to = mixed_gradients(unit, at.matrix).summary(at.block);
    for (Index r = 0; r < to.rows; ++r) copy_row(to.row(r), sums.row(r), to.cols);
  }
  /// dQ^r
  Panel<float> query_gradient(const Tile& at, Index, const Panel<const float>& u,
                              Prefetch* prefetch) const {
    const Extents& e = unit.extents();
    const PairScratch& scratch = at.scratch.pairs;
    const PairedRows u_rows = pair_features(u, scratch.value_rows);
    const Panel<float> sums = whole_panel(scratch.tile.data, u.rows, e.feature_dim);
    multiply(sums, u_rows, at.summary, Into::overwrite, prefetch);
    if constexpr (is_causal_within_block<L>) {
      const PairedRows scores = multiply_scores(
          scratch.scores, u_rows, pair_panel(scratch.columns.data, e.value_dim, u.rows));
      add_triangle(sums, scores, pair_panel(scratch.own_keys.data, u.rows, e.feature_dim), {1});
    }
    return sums.col_range(0, e.feature_dim);
  }
  /// Completes dQ^r before c is taken from it.
  void denominator_gradient(const Tile& at, const Panel<float>& rotated,
                            const Panel<const float>& u, Span<const float> denominators,
                            const Panel<float>& grad_rotated, Span<float> c) const {
    if (centers != nullptr)
      add_mixed_values(*centers, {centers->mixed.row(row_of(at.matrix, at.block)), u.cols}, u,
                       {at.scratch.inverses.data, u.rows}, grad_rotated);
    cpu::denominator_gradient<float>(rotated, grad_rotated, denominators, c);
    if (centers != nullptr)
      add_center_gradient(*centers, static_cast<float>(unit.operands.variant.normalizer.epsilon), u,
                          denominators, c);
  }
  /// p_i
  void add_mean_gradient(const Tile& at, const Panel<float>& features, const Panel<const float>& u,
                         Into into) const {
    if (centers == nullptr || !request.mixing()) return;
    const Span<float> weights{at.scratch.inverses.data, u.rows};
    row_products<float>(weights, features, Span<const float>(centers->feature));
    weighted_row_sum<float>({centers->gradients.row(row_of(at.matrix, at.block)), u.cols}, u,
                            weights, into);
  }

  void add_mixing_gradient(const ExecutorRef& loop) const {
    mix_unit_matrix_gradient(unit, centers, loop);
  }
  /// dS and dz of a group of key blocks.
  Mixtures mix_back(const RowGroups& groups, Index group, const SlotScratch<float>& scratch) const {
    return {cpu::mix_group_gradient(unit, request, groups, group, scratch, false),
            mix_group_gradient(unit, groups, group, scratch.pairs)};
  }
  BlockGradient block_gradient(const Mixtures& mixed, Index b,
                               const SlotScratch<float>& scratch) const {
    const Extents& e = unit.extents();
    const BlockGradient grad{this->summary(mixed, b, scratch),
                             pair_panel(scratch.pairs.turned.data, e.feature_dim, e.value_dim),
                             mixed.rows.key_sum(b)};
    if (request.gradients.value.wanted) turn(grad.not_transposed, grad.transposed);
    if (centers != nullptr && request.gradients.key.wanted)
      subtract_center(*centers, grad.transposed, grad.key_sum, scratch.pairs);
    return grad;
  }

  /// Under Causal the tile's own queries meanwhile pass through the slot's panels.
  OwnKeys pack_key_tile(OwnKeys k) const {
    const Extents& e = unit.extents();
    const SlotScratch<float>& scratch = k.scratch;
    const PairScratch& pairs = scratch.pairs;
    const Index tokens = k.tile.tokens;
    k.values = pack_value_rows(unit, unit.keys, k.tile, scratch,
                               is_causal_within_block<L> ? pairs.key_value_rows : pairs.value_rows);
    k.gradients = {whole_panel(pairs.tile.data, tokens, e.feature_dim),
                   {},
                   whole_panel(pairs.value_gradients.data, tokens, e.value_dim)};
    if constexpr (is_causal_within_block<L>) {
      const Panel<float> features = panel(scratch.own.rotated.data, tokens, e.feature_dim);
      k.features = {features, features};
      pack_features(key_features_of(unit, k.tile), unit.key_rows(unit.operands.k), k.features,
                    scratch.row);
      k.keys = pair_features(features, pairs.key_rows);
    } else {
      k.keys = pack_key_rows(unit, k.tile, scratch);
    }
    return k;
  }
  static void prefetch(const Mixtures&, Index, Index, Index, Prefetch&) {}
  void key_gradient(const OwnKeys& k, const BlockGradient& grad, Prefetch* prefetch) const {
    multiply(k.gradients.rotated, k.values, grad.transposed, Into::overwrite, prefetch);
  }
  static bool writes_in_place(const TokenRows<BFloat16>& results) {
    return is_in_place<float>(results);
  }
  /// In the tensor itself if `tensor` is given.
  void value_gradient(const OwnKeys& k, const BlockGradient& grad,
                      const TokenRows<BFloat16>* tensor, Prefetch* prefetch) const {
    if (tensor != nullptr)
      return multiply(stored_in(in_place(unit.keys.table, k.tile, *tensor), tensor->dim, {}),
                      k.keys, grad.not_transposed, prefetch);
    multiply(k.gradients.values, k.keys, grad.not_transposed, Into::overwrite, prefetch);
  }

  // Of the tile's own block, under Causal:
  KeyGradients<float> own_gradients(const OwnKeys& k) const {
    const Extents& e = unit.extents();
    const PairScratch& pairs = k.scratch.pairs;
    return {whole_panel(pairs.own_key_gradients.data, k.tile.tokens, e.feature_dim),
            {},
            whole_panel(pairs.own_value_gradients.data, k.tile.tokens, e.value_dim)};
  }
  /// dP^T of one matrix, of whole pairs of rows: what later tiles have left.
  Panel<float> grad_running(const OwnKeys& k, Index matrix) const {
    const Extents& e = unit.extents();
    const Index rows = 2 * pairs_of(e.value_dim);
    const Index cols = whole_columns(e.feature_dim);
    return {k.scratch.pairs.own_gradients.data + matrix * rows * cols, rows, cols, cols};
  }
  void take_later_gradients(const OwnKeys& k, Index matrix, const KeyGradients<float>& own) const {
    const Extents& e = unit.extents();
    const PairScratch& pairs = k.scratch.pairs;
    const Panel<float> sums = grad_running(k, matrix);
    const Index half = sums.rows / 2;
    const VnniPanel later = pair_panel(pairs.running.data, e.value_dim, e.feature_dim);
    const VnniPanel turned = pair_panel(pairs.own_turned.data, e.feature_dim, e.value_dim);
    pair_sums(later, sums.row_range(0, half), sums.row_range(half, half));
    turn(turned, later);
    multiply(own.rotated, k.values, later, Into::overwrite);
    multiply(own.values, k.keys, turned, Into::overwrite);
  }
  void add_own_queries(const OwnKeys& k, Index matrix, const Panel<float>& rotated,
                       const Panel<const float>& u, const KeyGradients<float>& own,
                       bool starts) const {
    const PairScratch& pairs = k.scratch.pairs;
    const VnniPanel u_tokens = pair_tokens(u, pairs.values);
    const VnniPanel q_tokens = pair_tokens(rotated, pairs.features);
    const Triangle future{0, true};
    const auto scores_with = [&](const PairedRows& keys, const Panel<const float>& queries,
                                 Span<Pair> rows) {
      return multiply_scores(pairs.scores, keys,
                             transposed(pair_features(queries, rows), pairs.columns));
    };
    if (request.own_keys())
      add_triangle(own.rotated, scores_with(k.values, u, pairs.value_rows), q_tokens, future);
    if (request.gradients.value.wanted)
      add_triangle(own.values, scores_with(k.keys, rotated, pairs.feature_rows), u_tokens, future);
    if (k.first) return;
    const Panel<float> sums = grad_running(k, matrix);  // which an earlier tile needs
    if (starts) set_zero(sums);
    multiply(sums.row_range(0, unit.extents().value_dim), u_tokens.transposed(), q_tokens,
             Into::add);
  }
};

}  // namespace cpu::pairs

MHLA_NAMESPACE_END
