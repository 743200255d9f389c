// SPDX-License-Identifier: MIT
// The products of a pass (forward_unit.hpp, backward_unit.hpp) in the accumulator type.
#pragma once

#include <mhla/cpu/backward_unit.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// S_b and z_b of every key block.
template <class L, class T, class A = Accumulator<T>>
void summarize_unit(const Unit<L, T>& unit, const ExecutorRef& loop) {
  const BlockTable& table = unit.keys.table;
  const TokenRows<const T> keys = unit.key_rows(unit.operands.k);
  const TokenRows<const T> values = unit.key_rows(unit.operands.v);
  loop.parallel_for(unit.keys.blocks, [&](Index b, Index slot) {
    const SlotScratch<A>& scratch = unit.plan.scratch[slot];
    const BlockSpan& block = unit.keys[b];
    if (block.tiles == 0) set_zero(unit.summaries.summary(b), unit.summaries.key_sum(b));
    for (Index i = 0; i < block.tiles; ++i) {
      const TokenTile& tile = table.tiles[block.first_tile + i];
      const FeaturePanels<A> k = pack_key_tile(unit, tile, scratch, scratch.row);
      Prefetch next = prefetch_tile(unit.keys, block.first_tile + i + 1, {keys, values});
      prefetch_summary(unit.summaries, b + 1, i, block.tiles, next);
      summarize<A>(k.features, k.rotated, readable_rows<T, A>(table, tile, values, scratch.values),
                   unit.orientation(), unit.summaries.summary(b),
                   {unit.summaries.key_sum(b), scratch.key_sum_rest},
                   i == 0 ? Into::overwrite : Into::add, &next);
    }
  });
}

namespace exact {

template <class L, class T>
struct Forward {
  using Variant = L;
  using Scalar = T;
  using A = Accumulator<T>;
  using Tile = QueryTile<A>;
  /// S~ and z~ of a group of query blocks, or dS and dz of one of key blocks.
  using Mixtures = SummaryRows<A>;

  const Unit<L, T>& unit;

  /// S~ of a block.
  static Panel<A> summary(const Mixtures& mixed, Index block, const SlotScratch<A>&) {
    return mixed.summary(block);
  }

  /// Packs a query tile's own values.
  void pack_own_tile(Tile& at) const {
    at.own.values = readable_panel<T>(unit.queries.table, at.tile(), unit.key_rows(unit.operands.v),
                                      at.scratch.own.values);
  }
  /// Adds the tile to P, which later tiles of its block read.
  void absorb_own_tile(const Tile& at) const {
    summarize<A>(at.own.features, at.own.rotated, at.own.values.placed(), unit.orientation(),
                 at.summary, {}, Into::add, nullptr);
  }

  /// y of a tile of query head g.
  void read_out(const Tile& at, Index g, const TensorView<T, 4>& y) const {
    const BlockTable& table = unit.queries.table;
    const TokenTile& tile = at.tile();
    const TokenRows<const T> queries = unit.query_rows(g, unit.operands.q);
    const TokenRows<T> results = unit.query_rows(g, y);
    const FeaturePanels<A> q = pack_query_tile(unit, g, tile, at.scratch);
    const Span<const A> denominators = tile_denominators(unit, at, g, q.features);
    Prefetch next = prefetch_tile(unit.queries, at.index + 1, {queries, results});
    if constexpr (is_causal_within_block<L>)
      next = prefetch_tile(
          unit.queries, at.index + 1,
          {queries, results, unit.key_rows(unit.operands.k), unit.key_rows(unit.operands.v)});
    prefetch_summary(at.mixed, at.block + 1, at.part(), at.parts(), next);

    const Span<A> inverses{at.scratch.inverses.data, denominators.size};
    const bool invertible = invert<A>(denominators, inverses);
    // The own block's contribution is added before the rows are scaled.
    if (!is_causal_within_block<L> && invertible && is_in_place_of_products<A>(results))
      return multiply_into_rows<A>(in_place_of_products<A>(table, tile, results), q.rotated,
                                   at.summary, inverses, &next);
    Panel<A> out = denominators.size == 0 ? panel_in_place<A>(table, tile, results) : Panel<A>{};
    const bool in_place = out.rows > 0;
    if (!in_place) out = panel(at.scratch.values.data, tile.tokens, unit.extents().value_dim);
    multiply_into_rows<A>(out.placed(), q.rotated, at.summary, {}, &next);
    if constexpr (is_causal_within_block<L>)
      read_out_own_tile<A>(q.rotated, at.own.rotated, at.own.values, at.own.scores, out);
    if (in_place) return;
    if (!invertible) divide_rows<A>(out, denominators);
    scatter<T, A>(table, tile, out, invertible ? inverses : Span<A>{}, results, Update::overwrite);
  }
};

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
    k.features = cpu::pack_key_tile(unit, k.tile, panels, k.scratch.row);
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
