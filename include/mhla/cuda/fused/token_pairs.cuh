// SPDX-License-Identifier: MIT
// A block's own tokens, which causal attention pairs one by one: for a tile of tokens x the tokens
// y of the other side that x pairs with, and the pairs' weights. And products over pairs of tokens,
// a tile of rows x and one of columns y at a time:
//
//   P = W o (A B^T)     C += P V
//
// for own blocks (W = m_ii where y <= x) and for the quadratic form (W = m_ib, i and b the blocks
// of x and y).
#pragma once

#include <mhla/cuda/chip/product.cuh>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/token_shapes.hpp>

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

/// The own tokens y that a token x is paired with, of the side that `side` says: keys up to a query
/// x, or queries from a key x on, of all heads that share the key. The weights of these pairs have
/// been computed before.
template <class T, class Map, bool Rotates, Side side>
struct OwnTokens {
  static constexpr bool is_some = true;
  static constexpr bool later = side == Side::queries;

  FeatureTokens<T, Map, Rotates> y;
  Tokens<const T> values;  // v, or dy
  MixingWeights mixing;
  /// A power of two that scales weights before gradients round them.
  float weight_scale = 1;
  Index heads_of_key = 1;
  const float* weights = nullptr;      // r, [units, blocks, heads, block tokens]; null: all 1
  const float* sum_weights = nullptr;  // c / r, likewise; null: all 0

  /// Heads of y that a head of x pairs with, and which they are.
  MHLA_HOST_DEVICE int heads() const { return later ? static_cast<int>(heads_of_key) : 1; }
  MHLA_DEVICE int head(int kv_head, int h) const { return kv_head * heads() + h; }
};

/// Whether x's t-th token and y's j-th pair.
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
                              const TokenRange& range, float where_none,
                              const SharedArray<float>& to) {
  for (int r = block.thread; r < Rows; r += Threads) {
    float number = where_none;
    if (from != nullptr)
      number = range.begin + r < range.end ? machine::load_from(from + first + r) : 0.0f;
    machine::write(to.at(r), number);
  }
}

/// Scores of a tile's pairs in the registers of eight warps.
template <int Rows>
using Scores = Accumulators<Rows, Rows, Rows / 16, 8 / (Rows / 16)>;

/// P = weight(x, y, score) rounded, into a tile; 0 for pairs without counts(x, y).
template <class T, int Rows, class Counts, class Weight>
MHLA_DEVICE void write_scores(const Block& block, Scores<Rows>& scores,
                              const Tile<Rows, Rows>& tile, const Counts& counts,
                              const Weight& weight) {
  scores.for_each_pair(block, [&](int x, int y, float& first, float& second) {
    first = counts(x, y) ? weight(x, y, first) : 0.0f;
    second = counts(x, y + 1) ? weight(x, y + 1, second) : 0.0f;
    machine::write(tile.at(x, y), machine::rounded_pair<T>(first, second));
  });
}

/// sums[part][x] += the scores of row x, over the columns of a part of the warps. Warps meet.
template <int Rows>
MHLA_DEVICE void add_row_sums(const Block& block, const Scores<Rows>& scores,
                              const SharedArray<float>& sums) {
  using S = Scores<Rows>;
  S::for_each_row(block, [&](int i, int half, int x) {
    float sum = 0;
    MHLA_DEVICE_UNROLL
    for (int j = 0; j < S::col_parts; ++j)
      sum += scores.value[i][j][2 * half] + scores.value[i][j][2 * half + 1];
    sum = sum_of_lanes<4>(sum);
    const int part = S::col_part(block, 0) / S::col_parts;
    const Shared at = sums.at(part * Rows + x);
    if (block.lane() % 4 == 0) machine::write<float>(at, machine::read<float>(at) + sum);
  });
}

/// Writes to `flags` what each warp's threads found. The warp meets.
MHLA_DEVICE void write_flags(const Block& block, float found, const SharedArray<float>& flags) {
  found = sum_of_lanes<32>(found);
  if (block.lane() == 0) machine::write<float>(flags.at(block.warp()), found);
}
/// Whether a tile has an infinity or NaN: each warp's flag is for its share; read them after the
/// next sync.
template <class T, int Threads, int Rows, int Cols>
MHLA_DEVICE void look_for_infinities(const Block& block, const Tile<Rows, Cols>& tile,
                                     const SharedArray<float>& flags) {
  constexpr std::uint32_t exponent = exponent_bits<T>;
  float found = 0;
  // Rarely called in a loop over tiles: places of chunks are to take no registers in between.
  MHLA_DEVICE_ROLLED
  for (int i = machine::known_anew(block).thread; i < Rows * tile.chunks; i += Threads) {
    const auto chunk = machine::read<Chunk>(tile.chunk(i / tile.chunks, i % tile.chunks));
    for (const std::uint32_t word : chunk.word)
      if ((word & exponent) == exponent || (word >> 16 & exponent) == exponent) found = 1;
  }
  write_flags(block, found, flags);
}
template <int Warps>
MHLA_DEVICE bool found_infinities(const SharedArray<float>& flags) {
  float found = 0;
  for (int warp = 0; warp < Warps; ++warp) found += machine::read<float>(flags.at(warp));
  return found != 0;
}
/// sum += P V for pairs with counts(x, y). `spoilt`: V has infinities.
template <class T, int Rows, int N, int WarpsM, int WarpsN, class Values, class Counts>
MHLA_DEVICE void add_pairs(const Block& block, Accumulators<Rows, N, WarpsM, WarpsN>& sum,
                           const Tile<Rows, Rows>& scores, const Values& values, bool spoilt,
                           const Counts& counts) {
  if (!spoilt) {
    multiply_add<T, Stored::not_transposed, Stored::not_transposed>(block, sum, scores, values);
    return;
  }
  using Sum = Accumulators<Rows, N, WarpsM, WarpsN>;
  static_assert(Sum::all_row_parts % WarpsM == 0);
  const Block anew = machine::known_anew(block);
  const int lane = anew.lane();
  MHLA_DEVICE_UNROLL
  for (int i = 0; i < Sum::row_parts; ++i) {
    const int row = Sum::row_part(anew, i) * 16;
    multiply_add_seen<T, Rows>(
        anew, sum.value[i],
        [&](int k, std::uint32_t(&a)[4]) {
          machine::load_matrices(a, scores.at(row + lane % 16, k + lane / 16 * 8));
        },
        values, 0, Sum::col_part(anew, 0) * 8,
        Sum::has_col_part(anew, Sum::col_parts - 1) ? Sum::col_parts
                                                    : Sum::all_col_parts - Sum::col_part(anew, 0),
        [&](int half, int y) { return counts(row + lane / 4 + half * 8, y); });
  }
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
