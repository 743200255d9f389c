// SPDX-License-Identifier: MIT
// The memory of a unit in progress on the quadratic path.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/cpu/partition.hpp>
#include <mhla/cpu/quadratic/scores.hpp>
#include <mhla/cpu/token_block.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::quadratic {

/// Of a unit's backward pass: its keys, all gradients of a kv head, and one tile of queries with
/// all keys.
template <class A>
struct BackwardMemory {
  Span<A> keys;               // [key tokens, feature_dim]: K^r
  Span<A> unrotated_keys;     // the same of K, if the normalizer has others
  Span<A> values_transposed;  // [value_dim, key tokens]
  Span<A> grad_keys;          // [key tokens, feature_dim]
  Span<A> grad_unrotated;     // the same of K
  Span<A> grad_values;        // [key tokens, value_dim]
  RowBuffers<A> row;
  Span<A> queries;            // [tile tokens, feature_dim]
  Span<A> unrotated_queries;  // the same of Q
  Span<A> grad_outputs;       // [tile tokens, value_dim]: dy
  Span<A> grad_numerators;    // the same: U
  Span<A> denominators;       // [tile tokens]; likewise:
  Span<A> inverses;
  Span<A> grad_denominators;
  Span<A> scores;            // [tile tokens, key tokens]: P
  Span<A> unrotated_scores;  // the same: E
  Span<A> products;          // [tile tokens, key tokens]: G
  Span<A> by_weight;         // [key tokens]: of dmix, before they are summed over a key block
  Span<A> sums;              // [2, ranges, tile tokens]
  Span<A> grad_queries;      // [ranges, tile tokens, feature_dim], and the same of Q

  MHLA_ONCE_A_CALL void lay_out(Arena& arena, const Extents& e, bool unrotated_too) {
    const Index stride = key_stride(e.key_tokens);
    const auto take = [&](Index rows, Index cols) {
      return arena.take<A>(checked_mul(rows, cols));
    };
    const Index also = unrotated_too ? 1 : 0;
    const Index max_count = max_ranges(e.key_tokens);
    keys = take(e.key_tokens, e.feature_dim);
    unrotated_keys = take(also * e.key_tokens, e.feature_dim);
    values_transposed = take(e.value_dim, stride);
    grad_keys = take(e.key_tokens, e.feature_dim);
    grad_unrotated = take(also * e.key_tokens, e.feature_dim);
    grad_values = take(e.key_tokens, e.value_dim);
    row = {take(e.tile_tokens, e.key_dim), take(e.tile_tokens, e.key_dim)};
    queries = take(e.tile_tokens, e.feature_dim);
    unrotated_queries = take(also * e.tile_tokens, e.feature_dim);
    grad_outputs = take(e.tile_tokens, e.value_dim);
    grad_numerators = take(e.tile_tokens, e.value_dim);
    denominators = take(1, e.tile_tokens);
    inverses = take(1, e.tile_tokens);
    grad_denominators = take(1, e.tile_tokens);
    scores = take(e.tile_tokens, stride);
    unrotated_scores = take(also * e.tile_tokens, stride);
    products = take(e.tile_tokens, stride);
    by_weight = take(1, stride);
    sums = take(checked_mul(2, max_count), e.tile_tokens);
    grad_queries =
        take(checked_mul(1 + also, checked_mul(max_count, e.tile_tokens)), e.feature_dim);
  }
};

/// Of a unit: its keys and values.
template <class A>
struct Memory {
  Span<KeyRange> ranges;
  Span<A> keys_transposed;       // [feature_dim, key tokens]: K^r
  Span<A> unrotated_transposed;  // the same of K, if the normalizer has others
  Span<A> values;                // [key tokens, value_dim]; forward only
  BackwardMemory<A> backward;    // backward only

  MHLA_ONCE_A_CALL void lay_out(Arena& arena, const Extents& e, bool unrotated_too,
                                bool is_backward) {
    const Index transposed = checked_mul(e.feature_dim, key_stride(e.key_tokens));
    ranges = arena.take<KeyRange>(max_ranges(e.key_tokens));
    keys_transposed = arena.take<A>(transposed);
    unrotated_transposed = arena.take<A>(unrotated_too ? transposed : 0);
    values = arena.take<A>(is_backward ? 0 : checked_mul(e.key_tokens, e.value_dim));
    if (is_backward) backward.lay_out(arena, e, unrotated_too);
  }
};

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
