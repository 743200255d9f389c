// SPDX-License-Identifier: MIT
// The memory of a call, laid out in the caller's workspace. Constructed on a measuring arena, a
// plan only determines how much it takes.
#pragma once

#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/limits.hpp>
#include <mhla/cuda/tables.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Queries of a causal block processed at once, in all blocks: their scores take as much memory as
/// this many features of every query.
inline constexpr Index slab_tokens = 64;

/// Which rows of panels are which tokens, and the sizes that every stage uses.
template <class V>
struct Extents {
  PanelRows queries;
  PanelRows keys;
  Index feature_dim;
  Index value_dim;
  Index key_dim;
  Index matrices;   // per kv head: 1 shared, or one per query head
  Index mix_heads;  // of the mixing matrix
  bool per_item;    // each batch item has its own
  Index mix_rows;   // of its corner that is used: query blocks of the longest sequence
  Index mix_columns;
  Index first_row;  // of a stage, in the whole matrix
  Index first_column;
  MixingLayout layout;     // of the longest sequence
  Index coefficients = 0;  // of a matrix of a structured mixing
  Index between = 0;       // rows of its work array after S~, of all sequences

  Extents(Arena& arena, const V& attention, const Problem& problem, Index items)
      : feature_dim(problem.feature_dim),
        value_dim(problem.shape.value_dim),
        key_dim(problem.shape.key_dim),
        matrices(problem.shape.matrices()),
        mix_heads(problem.shape.mix_heads),
        per_item(problem.shape.mix_per_item()),
        mix_rows(problem.query_blocks),
        mix_columns(problem.key_blocks),
        first_row(problem.queries.first),
        first_column(problem.keys.first),
        layout(mixing_layout<V>(problem)) {
    const TokenMasks masks = masks_of(attention);
    queries = {block_table(arena, attention, problem.query_grid, problem.queries,
                           problem.held_queries, masks.query),
               items, problem.shape.kv_heads, problem.shape.group_size()};
    keys = queries;
    keys.group_size = 1;
    const bool own_keys =
        is_causal_within_block<V> && problem.keys.count == 0;  // of queries in a stage
    if (problem.query_grid != problem.key_grid || (problem.keys != problem.queries && !own_keys))
      keys.table = block_table(arena, attention, problem.key_grid, problem.keys, problem.held_keys,
                               masks.key);
    keys.table.mask = masks.key;
    for (int a = 0; a < 3; ++a)
      queries.table.origin[a] = keys.table.origin[a] = problem.grid_box().begin[a];
    if constexpr (is_structured<V>) {
      coefficients = attention.mixing.num_coefficients(layout);
      for_each_sequence(attention, queries.table.grid, [&](const Sequence& sequence) {
        const MixingLayout own = layout_of(sequence);
        between = checked_add(
            between, attention.mixing.num_rows(own) - own.key_blocks() - own.query_blocks());
      });
    }
  }

  Index units() const { return keys.units(); }
  Index summary_size() const { return checked_mul(feature_dim, value_dim); }
  /// Summaries of all key blocks, and mixed ones of all query blocks.
  Index key_summaries() const { return checked_mul(units(), keys.table.blocks); }
  Index mixed_summaries() const {
    return checked_mul(units(), checked_mul(queries.table.blocks, matrices));
  }
  /// Queries that read one mixed summary.
  Index readers() const { return matrices == 0 ? 0 : queries.of_block() / matrices; }
  /// Coefficients of a matrix of mix, and packed matrices.
  Index mixing_size() const {
    return is_structured<V> ? coefficients : checked_mul(mix_rows, mix_columns);
  }
  /// Where row 0 has m_ii.
  Index own_column() const { return first_row - first_column; }
  Index mixings() const {
    const bool of_units = per_item || (is_structured<V> && mix_heads > 1);
    return of_units ? checked_mul(units(), matrices) : mix_heads;
  }
  /// The blocks that a sequence is mixed between.
  MixingLayout layout_of(const Sequence& sequence) const {
    MixingLayout own = layout;
    if constexpr (is_packed<V>) own.queries[2] = own.keys[2] = sequence.blocks;
    return own;
  }
};

/// Calls f(queries, keys) for the sequences of a batch item on both sides.
template <class V, class F>
void for_each_sequence_side(const V& variant, const Extents<V>& e, F&& f) {
  for_each_sequence(variant, e.queries.table.grid, [&](Sequence queries) {
    Sequence keys = queries;
    if constexpr (!is_packed<V>) {
      queries.blocks = e.mix_rows;
      keys.blocks = e.mix_columns;
    }
    f(queries, keys);
  });
}

/// cuBLAS's part of a workspace, at a multiple of 256 as it requires.
inline WorkspaceView take_cublas_workspace(Arena& arena) {
  constexpr Index alignment = 256;
  const Span<std::byte> room =
      arena.take<std::byte>(cublas_workspace_bytes + alignment - workspace_alignment);
  const auto past = static_cast<Index>(reinterpret_cast<std::uintptr_t>(room.data) % alignment);
  return {room.data + (past == 0 ? 0 : alignment - past), cublas_workspace_bytes};
}

/// The tables that every path's kernels read besides the tensors; `A` is the accumulator. Plans
/// take their memory array by array, where these are declared.
template <class V, class A, bool is_fused>
struct TablePlan {
  const V& variant;
  bool backward;
  std::optional<Stage> stage;
  Arena arena;
  Extents<V> extents;
  RotationTable<A> rotation;
  Span<A> mixing;  // [mix heads, mix rows, mix columns], packed, or a structured mixing's

  TablePlan(const Arena& memory, const V& attention, const Problem& problem, Index items,
            bool is_backward)
      : variant(attention),
        backward(is_backward),
        stage(problem.stage),
        arena(memory),
        extents(arena, attention, problem, items),
        rotation(rotation_table<A>(arena, attention.rotation, V::GeometryType::rank,
                                   problem.feature_dim, problem.grid_box(),
                                   is_fused ? strip_width(problem.feature_dim) : 0)),
        mixing(take(extents.mixings(), extents.mixing_size())) {}

  /// Whether a large batch is taken in parts, and whether those that stay in the L2 cache are
  /// faster than larger ones.
  static constexpr bool in_parts = false;
  static constexpr bool gains_by_cache(bool /*backward*/) { return false; }
  /// Places the summaries of items [first, ...) in a state, if it has memory; none are kept here.
  void keep_summaries(Index /*batch*/, Index /*first*/, Span<A> /*state*/) {}
  /// Whether it is a pass, or one of these stages.
  template <class... Stages>
  bool in(Stages... stages) const {
    return !stage || ((*stage == stages) || ...);
  }
  /// An array [rows, dim]; none unless all are true of `needed`.
  template <class... Needed>
  Span<A> take(Index rows, Index dim, Needed... needed) {
    return (true && ... && needed) ? arena.take<A>(checked_mul(rows, dim)) : Span<A>();
  }
  /// An array of the backward pass; none in a forward pass.
  template <class... Needed>
  Span<A> take_back(Index rows, Index dim, Needed... needed) {
    return take(rows, dim, backward, needed...);
  }
};

/// The workspace of a call on cuBLAS, or of a stage: blocks without tokens have no rows of panels.
template <class V, class A>
struct Plan : TablePlan<V, A, false> {
  using Base = TablePlan<V, A, false>;
  using Base::Base;
  using Base::extents;
  using Base::in;
  using Base::take;
  using Base::take_back;

  WorkspaceView cublas = take_cublas_workspace(this->arena);
  Index query_rows = extents.queries.count();
  Index key_rows = extents.keys.count();
  Index feature_dim = extents.feature_dim;
  Index value_dim = extents.value_dim;
  Index block_tokens = extents.keys.table.block_tokens;
  Index score_size = checked_mul((std::min)(slab_tokens, block_tokens), block_tokens);
  Index parts = checked_mul(extents.units(), extents.matrices);  // of dmix
  static constexpr Index splits = 1;                             // of each of their sums
  Index map_rows = is_rowwise<V> ? (std::max)(query_rows, key_rows) : 0;

  static constexpr bool in_parts = true;

  // What a variant needs, and what a stage.
  static constexpr bool own = is_causal_within_block<V>;
  static constexpr bool divides = normalizes<V>;
  static constexpr bool mixes_sums = mixes_key_sums<V>;
  bool mixes = in(Stage::read_out, Stage::read_out_gradient);
  bool to_queries = in(Stage::read_out_gradient);
  bool to_keys = in(Stage::summarize_gradient);

  // Panels of the queries: phi(q), the same rotated, numerators and y, or U.
  Span<A> queries = take(query_rows, feature_dim);
  Span<A> rotated_queries = rotates<V> ? take(query_rows, feature_dim) : queries;
  Span<A> outputs = take(query_rows, value_dim);
  Span<A> denominators = take(query_rows, 1, divides);
  // Panels of the keys.
  Span<A> keys = take(key_rows, feature_dim);
  Span<A> rotated_keys = rotates<V> ? take(key_rows, feature_dim) : keys;
  Span<A> values = take(key_rows, value_dim);
  Span<A> running_key_sums = take(key_rows, feature_dim, own, divides, mixes || to_keys);
  // Summaries of key blocks, and mixed ones of query blocks.
  Span<A> summaries = take(extents.key_summaries(), extents.summary_size(), in(Stage::summarize));
  Span<A> key_sums = take(extents.key_summaries(), feature_dim, divides, in(Stage::summarize));
  Span<A> mixed_summaries = take(extents.mixed_summaries(), extents.summary_size(), mixes);
  Span<A> mixed_key_sums = take(extents.mixed_summaries(), feature_dim, mixes_sums, mixes);
  Span<A> products = take(query_rows, 1, mixes_products<V>);  // R
  // Of a structured mixing: m_ii of every block, and rows in between, for the backward pass those
  // of all matrices.
  Index between = checked_mul(extents.units(), extents.between);
  Index kept = checked_mul(between, this->backward ? extents.matrices : 1);
  Span<A> own_mixing = take(extents.mixings(), is_structured<V> ? extents.mix_rows : 0, own);
  Span<A> between_summaries = take(kept, extents.summary_size());
  Span<A> between_key_sums = take(kept, feature_dim, mixes_sums);
  Span<A> scores = take(extents.key_summaries(), score_size, own,
                        in(Stage::read_out, Stage::summarize_gradient));
  Span<A> row_input = take(map_rows, extents.key_dim);  // of a row-wise map

  // Backward pass only.
  Span<A> grad_queries = take_back(query_rows, feature_dim, to_queries);
  Span<A> grad_keys = take_back(key_rows, feature_dim, to_keys);
  Span<A> grad_values = take_back(key_rows, value_dim, to_keys);
  Span<A> grad_denominators = take_back(query_rows, 1, divides);        // c
  Span<A> grad_products = take_back(query_rows, 1, mixes_products<V>);  // dR
  Span<A> own_products = take_back(query_rows, 1, own, to_keys);        // parts of dm_ii
  Span<A> grad_mixed_summaries =
      take_back(extents.mixed_summaries(), extents.summary_size(), to_queries);
  Span<A> grad_mixed_key_sums =
      take_back(extents.mixed_summaries(), feature_dim, mixes_sums, to_queries);
  Span<A> grad_summaries = take_back(extents.key_summaries(), extents.summary_size(), to_keys);
  Span<A> grad_key_sums = take_back(extents.key_summaries(), feature_dim, divides, to_keys);
  Span<A> grad_scores = take_back(extents.key_summaries(), score_size, own);
  Span<A> grad_row = take_back(map_rows, extents.key_dim);
  Span<A> grad_mixing = take_back(parts, extents.mixing_size(), to_queries);
  // The diagonal's, if it is separate.
  Span<A> grad_own_mixing = take_back(parts, extents.mix_rows, own, !is_structured<V>, to_keys);
  Span<A> grad_between_summaries = take_back(between, extents.summary_size());
  Span<A> grad_between_key_sums = take_back(between, feature_dim, mixes_sums);

  /// In a state: the summaries of the whole batch, followed by its key sums.
  void keep_summaries(Index batch, Index first, Span<A> state) {
    if (state.data == nullptr) return;
    const Index of_item = extents.keys.kv_heads * extents.keys.table.blocks;
    const Index size = extents.summary_size();
    summaries.data = state.data + first * of_item * size;
    if constexpr (normalizes<V>)
      key_sums.data = state.data + batch * of_item * size + first * of_item * feature_dim;
  }
};

/// Bytes of a plan for `items` items of the batch.
template <class PlanType, class V>
Index plan_size(const V& attention, const Problem& problem, Index items, bool backward) {
  return PlanType(Arena(), attention, problem, items, backward).arena.used();
}

/// Items of the batch processed at once: all, or so many that panels and summaries take bounded
/// memory, or stay in the L2 cache.
template <class PlanType, class V>
Index items_at_once(const V& attention, const Problem& problem, bool backward) {
  const Index batch = problem.shape.batch;
  if (batch <= 1 || !PlanType::in_parts) return batch;
  const Index one = plan_size<PlanType>(attention, problem, 1, backward);
  const Index more = plan_size<PlanType>(attention, problem, 2, backward) - one;
  const bool caches = PlanType::gains_by_cache(backward) && one <= cached_bytes;
  const Index bytes = caches ? (std::min)(cached_bytes, affordable_bytes) : affordable_bytes;
  const Index room = one < bytes ? (bytes - one) / (std::max)(Index{1}, more) : 0;
  const Index most = (std::min)(batch, 1 + room);
  return caches ? ceil_div(batch, ceil_div(batch, most)) : most;
}

}  // namespace cuda

MHLA_NAMESPACE_END
