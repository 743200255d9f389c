// SPDX-License-Identifier: MIT
// The streaming state of a batch of sequences in device memory, laid out in the caller's memory:
// first what a snapshot keeps, then tables and scratch. Needs no CUDA header.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/rotation_table.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/traits.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Maximum tokens that one step processes together.
inline constexpr Index max_decode_tile = 64;

/// The sizes of a decoder's state.
struct DecodeExtents {
  Index batch = 0;
  Index kv_heads = 0;
  Index group_size = 0;  // query heads of a kv head
  Index mix_heads = 1;   // of the mixing matrix
  Index matrices = 0;    // mixing matrices per kv head
  Index capacity = 0;    // tokens that a sequence can have
  Index blocks = 0;      // of which summaries are kept
  Index states = 0;      // R of a recurrence, which are kept instead
  Index mix_rows = 0;    // 1: for all blocks, of a recurrence
  Index mix_columns = 0;
  Index block_tokens = 0;  // n
  Index feature_dim = 0;   // D
  Index value_dim = 0;     // e
  bool normalizes = false;

  DecodeExtents() = default;
  DecodeExtents(const Problem& problem, Index most_tokens, bool has_denominators,
                Index recurrent_states)
      : batch(problem.shape.batch),
        kv_heads(problem.shape.kv_heads),
        group_size(problem.shape.group_size()),
        mix_heads(problem.shape.mix_heads),
        matrices(mix_heads == 1 ? (std::min)(Index{1}, group_size) : group_size),
        capacity(most_tokens),
        blocks(recurrent_states > 0 ? 0 : problem.query_blocks),
        states(recurrent_states),
        mix_rows(problem.shape.mix_query_blocks),
        mix_columns(problem.shape.mix_key_blocks),
        block_tokens(problem.query_grid.block[2]),
        feature_dim(problem.feature_dim),
        value_dim(problem.shape.value_dim),
        normalizes(has_denominators) {}

  Index units() const { return checked_mul(batch, kv_heads); }
  MHLA_HOST_DEVICE Index heads() const { return kv_heads * group_size; }
  Index tile() const { return (std::min)(block_tokens, max_decode_tile); }
  MHLA_HOST_DEVICE Index summary_size() const { return feature_dim * value_dim; }
  /// Whether a sequence can have a token of a block.
  MHLA_HOST_DEVICE bool has(Index block) const { return block * block_tokens < capacity; }

  friend bool operator==(const DecodeExtents&, const DecodeExtents&) = default;
};

/// What a snapshot keeps. Where there are two copies, even and odd blocks alternate. A sequence's
/// position is also in device memory: the kernels of a step derive their block and row from it, so
/// that a graph with a step can be replayed.
template <class A>
struct DecodeMemory {
  Span<Index> positions;  // [batch]: tokens that a sequence has seen
  Span<A> summaries;      // [units, blocks, D, e]: S_b of closed blocks
  Span<A> key_sums;       // [units, blocks, D]: z_b of closed blocks, and of the open one so far
  Span<A> states;         // [units, matrices, states, D, e]: H, instead of summaries
  Span<A> state_sums;     // [units, matrices, states, D]: of key sums, of which only one is kept
  Span<A> keys;           // [units, 2, n, D]: phi(k), rotated
  Span<A> values;         // [units, 2, n, e]
  Span<A> mixed;          // [units, 2, matrices, D, e]: P_i
  Span<A> mixed_sums;     // [units, 2, matrices, D]: z~_i

  DecodeMemory(Arena& arena, const DecodeExtents& e) : positions(arena.take<Index>(e.batch)) {
    const auto take = [&](Index rows, Index dim) {
      return arena.take<A>(checked_mul(e.units(), checked_mul(rows, dim)));
    };
    const Index summary = checked_mul(e.feature_dim, e.value_dim);
    const Index sum = e.normalizes ? e.feature_dim : 0;
    summaries = take(e.blocks, summary);
    key_sums = take(e.states > 0 ? 1 : e.blocks, sum);
    states = take(checked_mul(e.matrices, e.states), summary);
    state_sums = take(checked_mul(e.matrices, e.states), sum);
    keys = take(2 * e.block_tokens, e.feature_dim);
    values = take(2 * e.block_tokens, e.value_dim);
    mixed = take(2 * e.matrices, summary);
    mixed_sums = take(2 * e.matrices, sum);
  }

  static Index bytes(const DecodeExtents& e) {
    Arena arena;
    DecodeMemory(arena, e);
    return arena.used();
  }
};

/// What else a step needs: tables and scratch.
template <class V, class A>
struct DecodeScratch {
  Span<A> mixing;  // [mix heads, mix rows, mix columns]
  RotationTable<A> rotation;
  BlockTable tile;        // token t of a tile is at place t
  Span<A> queries;        // [query rows of a tile, D]: Q
  Span<A> rotated;        // the same: Q^r
  Span<A> key_features;   // [key rows of a tile, D]: K
  Span<A> open_key_sums;  // the same: sum of the open block's K up to each token
  Span<A> scores;         // [query rows of a tile, 2 n + 1]: of both blocks' keys, and den
  Span<A> row_input;      // [query or key rows of a tile, key_dim]: a row-wise map's input

  DecodeScratch(Arena& arena, const V& attention, const Problem& problem, const DecodeExtents& e) {
    const auto take = [&](Index rows, Index dim) { return arena.take<A>(checked_mul(rows, dim)); };
    mixing = take(e.mix_heads, checked_mul(e.mix_rows, e.mix_columns));
    rotation = rotation_table<A>(arena, attention.rotation, 1, e.feature_dim, problem.grid_box());
    tile =
        block_table(arena, attention, Grid{{1, 1, e.tile()}, {1, 1, e.tile()}}, {0, 1}, {0, 1}, {});
    const Index query_rows = checked_mul(checked_mul(e.batch, e.heads()), e.tile());
    const Index key_rows = checked_mul(e.units(), e.tile());
    queries = take(query_rows, e.feature_dim);
    rotated = rotates<V> ? take(query_rows, e.feature_dim) : queries;
    key_features = take(key_rows, e.feature_dim);
    open_key_sums = take(key_rows, normalizes<V> ? e.feature_dim : 0);
    scores = take(query_rows, checked_add(checked_mul(2, e.block_tokens), 1));
    row_input = take(is_rowwise<V> ? (std::max)(query_rows, key_rows) : 0, problem.shape.key_dim);
  }
};

/// A decoder as its kernel launches need it.
template <class V, class A>
struct DecoderParts {
  V attention;
  Problem problem;  // of the longest sequences
  DecodeExtents extents;
  DecodeMemory<A> memory;
  DecodeScratch<V, A> scratch;

  static Index states_of(const V& variant) {
    if constexpr (is_structured<V>) return variant.mixing.states;
    return 0;
  }
  DecoderParts(Arena& arena, const V& variant, const Problem& longest, Index capacity)
      : attention(variant),
        problem(longest),
        extents(longest, capacity, normalizes<V>, states_of(variant)),
        memory(arena, extents),
        scratch(arena, variant, longest, extents) {}
};

/// Bytes of a decoder.
template <class V, class A>
Index decoder_bytes(const V& attention, const Problem& problem, Index capacity) {
  Arena arena;
  DecoderParts<V, A>(arena, attention, problem, capacity);
  return arena.used();
}

}  // namespace cuda

MHLA_NAMESPACE_END
