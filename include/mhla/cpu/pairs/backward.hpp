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
  for_each_key_block(unit, loop, [&](Index b, const SlotScratch<float>& scratch) {
    const Panel<float> sums = unit.plan.summary_shape().sums(scratch.pairs.summary);
    transpose(sums, panel(saved + b * e.summary_stride(), e.feature_dim, e.value_dim));
    finish(paired_summaries(unit).half(b), sums);
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

template <class L>
struct Backward : Forward<L> {
  using typename Forward<L>::Mixtures;
  using typename Forward<L>::Tile;
  using OwnKeys = KeyTile<float, PairedRows>;
  static constexpr bool stores_products = true;

  const BackwardRequest<L, BFloat16>& request;
  const Centers* centers;  // of the unit, if its summaries lack them
  using Forward<L>::unit;

  /// The row of query block i in what has a row for every matrix and query block.
  Index row_of(Index matrix, Index i) const { return matrix * unit.extents().query_blocks + i; }
  Panel<float> summary_gradient(const SlotScratch<float>& scratch) const {
    return unit.plan.summary_shape().sums(scratch.pairs.summary_gradient);
  }
  VnniPanel turned(const PairPanels& in) const {
    return pair_panel(in.turned.data, unit.extents().feature_dim, unit.extents().value_dim);
  }

  /// Completes dS~ of pairs of blocks. A block without tokens sends nothing back.
  void end_block(Index matrix, Index i, const SlotScratch<float>& scratch) const {
    if (unit.queries[i].tiles == 0) {
      const SummaryRows<float> grad = mixed_gradients(unit, matrix);
      const Panel<float> sums = unit.in_pairs ? summary_gradient(scratch) : grad.summary(i);
      set_zero(sums, grad.key_sum(i));
      if (centers != nullptr) set_zero(centers->gradients.row_range(row_of(matrix, i), 1));
      if (unit.in_pairs) finish(paired_gradients(unit, matrix).half(i), sums);
    }
    if (unit.in_pairs && (i % 2 == 1 || i + 1 == unit.queries.blocks))
      paired_gradients(unit, matrix).complete(i, is_causal<L>);
  }

  /// Packs a query tile's own keys and values: v, its transpose, and m_ii phi(k).
  void pack_own_tile(Tile& at) const {
    const SlotScratch<float>& scratch = at.scratch;
    const TokenTile& tile = at.tile();
    pair_tokens(at.own.rotated, scratch.pairs.own.features);
    pack_values(unit, unit.queries, tile, scratch, scratch.pairs.own.values);
    transposed(pack_value_rows(unit, unit.queries, tile, scratch, scratch.pairs.value_rows),
               scratch.pairs.columns);
  }
  void absorb_own_tile(Tile& at) const {
    const PairPanels& own = at.scratch.pairs.own;
    const Index tokens = at.tile().tokens;
    this->absorb(pair_panel(own.values.data, tokens, unit.extents().value_dim),
                 pair_panel(own.features.data, tokens, unit.extents().feature_dim), at);
  }

  /// dS~_i^T (+)= U^T Q^r
  void add_summary_gradient(const Tile& at, const Panel<float>& rotated,
                            const Panel<const float>& u, bool first, bool last,
                            Prefetch* prefetch) const {
    const Panel<float> sums = summary_gradient(at.scratch);
    const LeftFactor a = pair_tokens(u, at.scratch.pairs.values).transposed();
    const VnniPanel b = pair_tokens(rotated, at.scratch.pairs.features);
    if (last && unit.in_pairs)  // only this step rounds
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
      add_triangle(sums, scores, pair_panel(scratch.own.features.data, u.rows, e.feature_dim), {1});
    }
    const Panel<float> grad = sums.col_range(0, e.feature_dim);
    if (centers != nullptr)
      add_mixed_values(*centers, {centers->mixed.row(row_of(at.matrix, at.block)), u.cols}, u,
                       {at.scratch.inverses.data, u.rows}, grad);
    return grad;
  }
  /// Adds <U_t, mu> epsilon / den_t, what the gradient of den_t has beside that of centered values,
  /// to c; and makes p_i.
  void add_center_gradients(const Tile& at, const Panel<float>& features,
                            const Panel<const float>& u, Span<const float> denominators,
                            Span<float> c, Into into) const {
    constexpr float least = 1e-7f;  // of den, that shows in a float
    if (centers == nullptr) return;
    const auto epsilon = static_cast<float>(unit.operands.variant.normalizer.epsilon);
    const Panel<const float> mu{centers->value.data, 1, u.cols, u.cols};
    for (Index t = 0; t < u.rows; ++t)
      if (denominators[t] != 0 && (std::abs)(epsilon) > least * (std::abs)(denominators[t]))
        c[t] += epsilon / denominators[t] * inner_product<float>(u.row_range(t, 1), mu);
    if (!request.mixing()) return;
    const Span<float> weights{at.scratch.inverses.data, u.rows};
    row_products<float>(weights, features, Span<const float>(centers->feature));
    weighted_row_sum<float>({centers->gradients.row(row_of(at.matrix, at.block)), u.cols}, u,
                            weights, into);
  }

  /// dm += <dS~, S> + <dz~, z>, and <p, W> of `centers`, for some columns: key blocks from `first`
  /// on.
  void add_mixing_gradient(const Panel<float>& columns, Index matrix, Index first,
                           const SlotScratch<float>&) const {
    mix_matrix_gradient(paired_gradients(unit, matrix), paired_summaries(unit), first,
                        is_causal<L> ? lag_of(sight_of<L>) : -unit.keys.blocks, columns);
    if constexpr (normalizes<L>) {
      const auto add = [&](const Panel<float>& grad, const Panel<float>& from) {
        multiply_right_transposed<float>(columns, grad, from.row_range(first, columns.cols),
                                         Into::add, grad.rows);
      };
      add(mixed_gradients(unit, matrix).key_sums, unit.summaries.key_sums);
      if (centers != nullptr)
        add(centers->gradients.row_range(row_of(matrix, 0), unit.queries.blocks),
            centers->sums(unit.keys.blocks));
    }
  }
  /// dS of a group of key blocks in pairs.
  MixedSummaries mix_back(const Mixtures& group, const PairScratch& scratch) const {
    return mix_blocks(
        unit, unit.plan.rounded.keys, group, {group.first + lag_of(sight_of<L>), true}, 0,
        unit.extents().matrices, [&](Index matrix) { return paired_gradients(unit, matrix); },
        scratch);
  }
  BlockGradient<float, VnniPanel> block_gradient(const Mixtures& mixed, Index b,
                                                 const SlotScratch<float>& scratch) const {
    const BlockGradient<float, VnniPanel> grad{this->summary(mixed, b, scratch),
                                               turned(scratch.pairs), mixed.key_sum(b)};
    if (request.gradients.value.wanted) turn(grad.not_transposed, grad.transposed);
    if (centers != nullptr && request.gradients.key.wanted)
      subtract_center(*centers, grad.transposed, grad.key_sum, scratch.pairs);
    return grad;
  }

  /// Under Causal the tile's own queries meanwhile pass through the slot's panels.
  OwnKeys pack_key_tile(OwnKeys k) const {
    constexpr bool own = is_causal_within_block<L>;
    const TilePanels<float>& usual = k.scratch;
    const PairPanels& pairs = own ? k.scratch.pairs.own : k.scratch.pairs;
    const TokenRows<const BFloat16> keys = unit.key_rows(unit.operands.k);
    k.values = pack_value_rows(unit, unit.keys, k.tile, k.scratch, pairs.value_rows);
    if constexpr (ElementwiseFeatureMap<typename L::FeatureMapType> && !own)
      if (maps_into_pairs(unit, keys)) {
        k.keys = paired_rows(pairs.feature_rows.data, k.tile.tokens, keys.dim);
        map_pair_columns(unit.operands.variant.feature_map, 1.0f, k.keys,
                         in_place(unit.keys.table, k.tile, keys), Span<const float>{},
                         Span<float>{});
        return k;
      }
    k.features = pack_features(key_features(unit, k.tile), k.scratch, own ? k.scratch.own : usual);
    k.keys = pair_features(k.features.rotated, pairs.feature_rows);
    return k;
  }
  void key_gradient(const OwnKeys& k, const auto& grad, Prefetch* prefetch) const {
    multiply(k.gradients.rotated, k.values, grad.transposed, Into::overwrite, prefetch);
  }
  /// In the tensor itself if `tensor` is given.
  void value_gradient(const OwnKeys& k, const auto& grad, const TokenRows<BFloat16>* tensor,
                      Prefetch* prefetch) const {
    if (tensor != nullptr)
      return multiply(stored_in(in_place(unit.keys.table, k.tile, *tensor), tensor->dim, {}),
                      k.keys, grad.not_transposed, prefetch);
    multiply(k.gradients.values, k.keys, grad.not_transposed, Into::overwrite, prefetch);
  }

  // Of the tile's own block, under Causal:
  void take_later_gradients(const OwnKeys& k, const Panel<float>& sums,
                            const KeyGradients<float>& own) const {
    const PairScratch& pairs = k.scratch.pairs;
    const VnniPanel later = pair_panel(pairs.running.data, sums.rows, sums.cols);
    pair_sums(later, sums, sums.row_range(later.pairs, later.pairs));
    turn(turned(pairs.own), later);
    multiply(own.rotated, k.values, later, Into::overwrite);
    multiply(own.values, k.keys, turned(pairs.own), Into::overwrite);
  }
  void add_own_queries(const OwnKeys& k, const Panel<float>& later, const Panel<float>& rotated,
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
    if (starts) std::fill_n(later.data, 2 * pairs_of(later.rows) * later.stride, 0.0f);
    multiply(later, u_tokens.transposed(), q_tokens, Into::add);  // an earlier tile needs it
  }
};

}  // namespace cpu::pairs

MHLA_NAMESPACE_END
