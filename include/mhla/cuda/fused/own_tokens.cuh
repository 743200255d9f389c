// SPDX-License-Identifier: MIT
// A block's own tokens, which causal attention pairs one by one: for a tile of tokens x the tokens
// y of the other side that x pairs with, and the pairs' weights.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/tokens.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// The mixing matrix, [heads, rows, columns] in float.
struct MixingWeights {
  const float* data;
  int heads;  // 1, or one per query head
  int rows;
  int columns;

  MHLA_DEVICE float at(Index head, Index row, Index column) const {
    const Index first = heads == 1 ? 0 : head * rows;
    return machine::load_from(data + (first + row) * columns + column);
  }
};

/// No own tokens.
struct NoOwnTokens {
  static constexpr bool is_some = false;
  static constexpr bool later = false;
};

/// For queries x: the keys up to x.
template <class T, class Map, bool Rotates>
struct OwnTokens {
  static constexpr bool is_some = true;
  static constexpr bool later = false;

  FeatureTokens<T, Map, Rotates> y;
  Tokens<const T> values;
  MixingWeights mixing;
  /// A power of two that scales weights before gradients round them.
  float weight_scale = 1;

  /// Heads of y that a head of x pairs with, and which they are.
  MHLA_HOST_DEVICE static int heads() { return 1; }
  MHLA_DEVICE static int head(int kv_head, int) { return kv_head; }
};

/// For keys x: the queries from x on, of all heads that share the key, with the weights of their
/// pairs, computed by then.
template <class T, class Map, bool Rotates>
struct OwnQueries {
  static constexpr bool is_some = true;
  static constexpr bool later = true;

  FeatureTokens<T, Map, Rotates> y;
  Tokens<const T> values;  // dy
  MixingWeights mixing;
  float weight_scale = 1;
  Index heads_of_key;
  const float* weights;      // r, [units, blocks, heads, block tokens]; null: all 1
  const float* sum_weights;  // c / r, likewise; null: all 0

  MHLA_HOST_DEVICE int heads() const { return static_cast<int>(heads_of_key); }
  MHLA_DEVICE int head(int kv_head, int h) const { return kv_head * heads() + h; }
};

/// The weight of the pair of x's t-th token and y's j-th.
template <class Own>
MHLA_DEVICE bool counts(const TokenRange& x, int t, const TokenRange& y, int j) {
  return Own::later ? y.begin + j >= x.begin + t : y.begin + j <= x.begin + t;
}

/// Calls f(y) for the tiles of x's block that pair with a tile of x, in order of heads and tokens.
template <int Rows, class Own, class F>
MHLA_DEVICE void for_each_own_tile(const Own& own, const BlockTable& table, const TokenRange& x,
                                   int kv_head, const F& f) {
  for (int h = 0; h < own.heads(); ++h) {
    TokenRange y{x.item, own.head(kv_head, h), x.begin, x.end};
    if constexpr (!Own::later) y.begin = table.begin_of(table.block_of(x.begin));
    for (; y.begin < y.end && (Own::later || y.begin <= x.begin); y.begin += Rows) f(y);
  }
}

/// m_ii of a pair's query.
template <class Own>
MHLA_DEVICE float own_mixing(const Own& own, const BlockTable& table, const TokenRange& x,
                             const TokenRange& y) {
  const Index i = machine::load_from(table.mix_rows.data + table.block_of(x.begin));
  return own.mixing.at(Own::later ? y.head : x.head, i, i);
}

/// Where the numbers of a range's first query are in [units, blocks, heads, block tokens].
MHLA_DEVICE Index first_number(const BlockTable& table, int kv_heads, int heads,
                               const TokenRange& range) {
  const Index unit = range.item * kv_heads + range.head / heads;
  const int b = table.block_of(range.begin);
  return ((unit * table.blocks + b) * heads + range.head % heads) * table.block_tokens +
         (range.begin - table.begin_of(b));
}
/// Copies the numbers of a tile's queries, from the `first` on, to shared memory; 0 past the
/// block's end.
template <int Threads, int Rows>
MHLA_DEVICE void copy_numbers(const Block& block, const float* from, Index first,
                              const TokenRange& range, float where_none, Shared to) {
  for (int r = block.thread; r < Rows; r += Threads) {
    float number = where_none;
    if (from != nullptr)
      number = range.begin + r < range.end ? machine::load_from(from + first + r) : 0.0f;
    machine::write(to + static_cast<Shared>(r * 4), number);
  }
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
