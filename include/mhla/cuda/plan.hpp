// SPDX-License-Identifier: MIT
// The memory of a call, laid out in the caller's workspace. Constructed on a measuring arena, a
// plan only determines how much it takes; it needs no CUDA header, so that a plain .cpp can use it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/limits.hpp>
#include <mhla/cuda/rotation_table.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/traits.hpp>
#include <mhla/policy/variant.hpp>

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
  Index mix_rows;   // of its corner that is used: query blocks of the longest sequence
  Index mix_columns;

  Extents(Arena& arena, const V& attention, const Problem& problem, Index items)
      : feature_dim(problem.feature_dim),
        value_dim(problem.shape.value_dim),
        key_dim(problem.shape.key_dim),
        matrices(problem.shape.mix_heads == 1 ? std::min(Index{1}, problem.shape.group_size())
                                              : problem.shape.group_size()),
        mix_heads(problem.shape.mix_heads),
        mix_rows(problem.query_blocks),
        mix_columns(problem.key_blocks) {
    TensorView<const std::uint8_t, 2> query_mask;
    TensorView<const std::uint8_t, 2> key_mask;
    if constexpr (requires { attention.masks; }) {
      query_mask = attention.masks.query;
      key_mask = attention.masks.key;
    }
    queries = {block_table(arena, attention, problem.query_grid, query_mask), items,
               problem.shape.kv_heads, problem.shape.group_size()};
    keys = queries;
    keys.group_size = 1;
    if (problem.query_grid != problem.key_grid)
      keys.table = block_table(arena, attention, problem.key_grid, key_mask);
    keys.table.mask = key_mask;
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
  Index mixing_size() const { return checked_mul(mix_rows, mix_columns); }
};

/// Calls f(queries, keys) for the sequences of a batch item on both sides.
template <class V, class F>
void for_each_sequence_side(const V& variant, const Extents<V>& e, F&& f) {
  for_each_sequence(variant, e.queries.table.grid, [&](const Sequence& queries) {
    Sequence keys = queries;
    if constexpr (!is_packed<V>) keys.blocks = e.keys.table.blocks;
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

/// The tables that every path's kernels read besides the tensors; `A` is the accumulator.
template <class V, class A>
struct TablePlan {
  Extents<V> extents;
  RotationTable<A> rotation;
  Span<A> mixing;  // [mix heads, mix rows, mix columns], packed

  /// `strip` as in RotationTable.
  TablePlan(Arena& arena, const V& attention, const Problem& problem, Index items, Index strip)
      : extents(arena, attention, problem, items),
        rotation(rotation_table<A>(arena, attention.rotation, V::GeometryType::rank,
                                   problem.feature_dim, problem.query_grid, problem.key_grid,
                                   strip)),
        mixing(arena.take<A>(checked_mul(extents.mix_heads, extents.mixing_size()))) {}
};

/// The workspace of a call on cuBLAS.
template <class V, class A>
struct Plan : TablePlan<V, A> {
  WorkspaceView cublas;

  // Panels of the queries, [query rows, dim]: phi(q), the same rotated, numerators and y, or U.
  Span<A> queries;
  Span<A> rotated_queries;
  Span<A> outputs;
  Span<A> denominators;  // [query rows]
  // Panels of the keys, [key rows, dim].
  Span<A> keys;
  Span<A> rotated_keys;
  Span<A> values;
  Span<A> running_key_sums;
  // Summaries of key blocks, and mixed ones of query blocks.
  Span<A> summaries;        // [units, key blocks, feature_dim, value_dim]
  Span<A> key_sums;         // [units, key blocks, feature_dim]
  Span<A> mixed_summaries;  // [units, query blocks, matrices, feature_dim, value_dim]
  Span<A> mixed_key_sums;   // [units, query blocks, matrices, feature_dim]
  Span<A> products;         // [query rows]: R
  Span<A> scores;           // [units, blocks, slab tokens, block tokens]
  Span<A> row_input;        // [rows, key_dim]: a row-wise map's input

  // Backward pass only.
  Span<A> grad_queries;       // [query rows, feature_dim]
  Span<A> grad_keys;          // [key rows, feature_dim]
  Span<A> grad_values;        // [key rows, value_dim]
  Span<A> grad_denominators;  // [query rows]: c
  Span<A> grad_products;      // [query rows]: dR
  Span<A> own_products;       // [query rows]: each query's part of dm_ii
  Span<A> grad_mixed_summaries;
  Span<A> grad_mixed_key_sums;
  Span<A> grad_summaries;
  Span<A> grad_key_sums;
  Span<A> grad_scores;
  Span<A> grad_row;         // [rows, key_dim]
  Span<A> grad_mixing;      // [units, matrices, mix rows, mix columns]
  Span<A> grad_own_mixing;  // [units, matrices, mix rows]: the diagonal's, if it is separate

  Plan(Arena& arena, const V& attention, const Problem& problem, Index items, bool backward)
      : TablePlan<V, A>(arena, attention, problem, items, 0), cublas(take_cublas_workspace(arena)) {
    const Extents<V>& e = this->extents;
    const Index query_rows = e.queries.count();
    const Index key_rows = e.keys.count();
    const auto take = [&](bool needed, Index rows, Index dim) {
      return arena.take<A>(needed ? checked_mul(rows, dim) : 0);
    };
    queries = take(true, query_rows, e.feature_dim);
    rotated_queries = rotates<V> ? take(true, query_rows, e.feature_dim) : queries;
    outputs = take(true, query_rows, e.value_dim);
    denominators = take(normalizes<V>, query_rows, 1);
    keys = take(true, key_rows, e.feature_dim);
    rotated_keys = rotates<V> ? take(true, key_rows, e.feature_dim) : keys;
    values = take(true, key_rows, e.value_dim);
    running_key_sums = take(masks_own_block<V> && normalizes<V>, key_rows, e.feature_dim);
    summaries = take(true, e.key_summaries(), e.summary_size());
    key_sums = take(normalizes<V>, e.key_summaries(), e.feature_dim);
    mixed_summaries = take(true, e.mixed_summaries(), e.summary_size());
    mixed_key_sums = take(mixes_key_sums<V>, e.mixed_summaries(), e.feature_dim);
    products = take(mixes_products<V>, query_rows, 1);
    const Index block_tokens = e.keys.table.block_tokens;
    const Index score_size = checked_mul(std::min(slab_tokens, block_tokens), block_tokens);
    scores = take(masks_own_block<V>, e.key_summaries(), score_size);
    row_input = take(is_rowwise<V>, std::max(query_rows, key_rows), e.key_dim);
    if (!backward) return;

    grad_queries = take(true, query_rows, e.feature_dim);
    grad_keys = take(true, key_rows, e.feature_dim);
    grad_values = take(true, key_rows, e.value_dim);
    grad_denominators = take(normalizes<V>, query_rows, 1);
    grad_products = take(mixes_products<V>, query_rows, 1);
    own_products = take(masks_own_block<V>, query_rows, 1);
    grad_mixed_summaries = take(true, e.mixed_summaries(), e.summary_size());
    grad_mixed_key_sums = take(mixes_key_sums<V>, e.mixed_summaries(), e.feature_dim);
    grad_summaries = take(true, e.key_summaries(), e.summary_size());
    grad_key_sums = take(normalizes<V>, e.key_summaries(), e.feature_dim);
    grad_scores = take(masks_own_block<V>, e.key_summaries(), score_size);
    grad_row = take(is_rowwise<V>, std::max(query_rows, key_rows), e.key_dim);
    grad_mixing = take(true, checked_mul(e.units(), e.matrices), e.mixing_size());
    grad_own_mixing = take(masks_own_block<V>, checked_mul(e.units(), e.matrices), e.mix_rows);
  }

  /// Places the summaries of items [first, ...) in a state, if it has memory: those of the whole
  /// batch, followed by its key sums.
  void keep_summaries(Index batch, Index first, Span<A> state) {
    if (state.data == nullptr) return;
    const Extents<V>& e = this->extents;
    const Index of_item = e.keys.kv_heads * e.keys.table.blocks;
    summaries.data = state.data + first * of_item * e.summary_size();
    if constexpr (normalizes<V>)
      key_sums.data =
          state.data + batch * of_item * e.summary_size() + first * of_item * e.feature_dim;
  }
};

/// Bytes of a plan for `items` items of the batch.
template <class PlanType, class V>
Index plan_size(const V& attention, const Problem& problem, Index items, bool backward) {
  Arena arena;
  PlanType(arena, attention, problem, items, backward);
  return arena.used();
}

/// Items of the batch processed at once, so that panels and summaries take bounded memory.
template <class PlanType, class V>
Index items_at_once(const V& attention, const Problem& problem, bool backward) {
  const Index batch = problem.shape.batch;
  if (batch <= 1) return batch;
  const Index one = plan_size<PlanType>(attention, problem, 1, backward);
  const Index more = plan_size<PlanType>(attention, problem, 2, backward) - one;
  const Index room =
      one < affordable_bytes ? (affordable_bytes - one) / std::max(Index{1}, more) : 0;
  return std::min(batch, 1 + room);
}

}  // namespace cuda

MHLA_NAMESPACE_END
