// SPDX-License-Identifier: MIT
// Shapes of the kernels over pairs of tokens: tiles, what a query sees, and the powers of two that
// keep 16-bit numbers in range. Needs no CUDA header, so that a plan and a cost model can use it.
#pragma once

#include <mhla/cuda/plan.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Tokens of a thread block's own tile, and of the tiles of the other side that it loops over:
/// fewer if rows are long, so that two thread blocks share an SM. Twofold calls have rotated
/// features, for scores, and unrotated ones, for denominators.
struct PairTiles {
  int own;  // 16 for each warp
  int others;
  int slices;  // warps that share 16 tokens, and sum parts of the result's columns
  int blocks_of_sm;
  /// Where half of a thread block's warps sum dv, and the others dk.
  constexpr int own_of_two() const { return own / 2; }
};
constexpr PairTiles pair_tiles(Index key_dim, Index value_dim, bool is_twofold) {
  const Index dim = key_dim < value_dim ? value_dim : key_dim;
  if (dim > 128) return is_twofold ? PairTiles{32, 16, 2, 2} : PairTiles{64, 16, 1, 2};
  if (dim > 96 || is_twofold) return {64, 32, 1, 2};
  if (dim > 72) return {128, 64, 1, 2};
  return {128, 128, 1, 2};
}
/// Tokens of a thread block's own tile that one warp has.
inline constexpr int pair_warp_rows = 16;
/// At most so many warps have queries of one block.
constexpr Index runs_of_block(Index block_tokens) {
  if (block_tokens % pair_warp_rows == 0) return block_tokens / pair_warp_rows;
  return (block_tokens + pair_warp_rows - 2) / pair_warp_rows + 1;
}

/// Elements of a mixing matrix that a thread block keeps in its shared memory; larger ones are read
/// pair by pair.
inline constexpr int max_kept_weights = 512;
MHLA_HOST_DEVICE constexpr bool keeps_mixing(int rows, int columns) {
  return Index{rows} * columns <= max_kept_weights;
}

/// Half ends at 65504 and scores are sums over key_dim: they are scaled by a power of two near 1 /
/// sqrt(key_dim) before rounding. BFloat16 has the range of float.
template <class T>
constexpr float score_scale(Index key_dim) {
  float scale = 1;
  if (std::is_same_v<T, Half>)
    for (; key_dim >= 4; key_dim /= 4) scale /= 2;
  return scale;
}

/// The weights of a backward pass are inversely proportional to the number of keys that share a
/// denominator: all of them or, if causal, between one and all, where the middle leaves equal room
/// on both sides. Without denominators they are as large as scores.
template <class T>
constexpr float gradient_scale(Index key_dim, Index keys, bool divides, Sight sees) {
  if (!std::is_same_v<T, Half>) return 1;
  if (!divides) return score_scale<T>(key_dim);
  float scale = 1;
  for (; keys > 1; keys /= sees == Sight::all ? 2 : 4) scale *= 2;
  return scale;
}

/// The workspace of a call over pairs.
template <class V>
struct PairPlan : TablePlan<V, float, true> {
  using Base = TablePlan<V, float, true>;
  using Base::Base;
  using Base::extents;
  using Base::take_back;

  // 1 / den of every query, and the gradient of den; parts of dmix, of every query head and run of
  // a block's queries, and their sums over packed sequences.
  Span<float> weights = take_back(extents.queries.count(), 1, normalizes<V>);
  Span<float> sum_weights = take_back(extents.queries.count(), 1, normalizes<V>);
  Index runs = runs_of_block(extents.queries.table.block_tokens);
  Index grad_parts =
      checked_mul(extents.queries.units(), checked_mul(extents.queries.group_size, runs));
  Span<float> grad_mixing =
      take_back(checked_mul(grad_parts, extents.queries.table.blocks), extents.mix_columns);
  Span<float> packed_grad_mixing = take_back(grad_parts, extents.mixing_size(), is_packed<V>);
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
