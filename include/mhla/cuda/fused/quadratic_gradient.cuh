// SPDX-License-Identifier: MIT
// The adjoint of attention as pairs of tokens, from q, k, v, mix and dy alone. With P = Q^r K^r^T,
// dP = dY V^T, m the weights of pairs in mix and s their sum over keys:
//
//   den = s(m P) + epsilon   r = 1 / den   c = -s(m P o dP) r^2      (r = 1, c = 0 undivided)
//   dQ^r = W K^r   dK^r = W^T Q^r   dV = (m r P)^T dY                W = m (r dP + c)
//   dm_ib = sum of P (r dP + c) over the tokens of i and b
//
// r dP and c are large and nearly cancel if values have a common mean: W is rounded to 16 bits
// after that, scaled by a power of two that keeps it in range. There is a kernel for each side,
// which owns its sums, so that their order is fixed: quadratic_query_gradient.cuh, which also sums
// dm, and passes r and c through memory to quadratic_key_gradient.cuh. If a rotation applies only
// to the numerators' features, c's parts are separate sums. This file has what they share.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/chip/warp_product.cuh>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/quadratic_pairs.cuh>
#include <mhla/cuda/fused/strips.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// R^T g of a tile's present tokens, in place, before sums of unrotated features are added.
/// Synchronizes the thread block before and after.
template <int Threads, class T, class Map, int Rows, int Dim>
MHLA_DEVICE void turn_back(const Block& block, const FeatureTokens<T, Map, true>& of,
                           const TokenRange& range, const FloatTile<Rows, Dim>& gradient) {
  const LaneAngles<Dim, true> angles(block, of.rotation);
  for_each_token<Threads, Rows, Dim, true>(
      block, of.x.table, range, [&](int row, const Place& place) {
        if (place.token < 0) return;
        const auto of_token = angles.of(block, place);
        Strips<Dim>::for_each(block, [&](int n, [[maybe_unused]] int i) {
          typename Strips<Dim>::Elements g;
          gradient.read_strip(row, n, g);
          angles.turn(i, of_token, Turn::back, g);
          gradient.write_strip(row, n, g);
        });
      });
}

/// The tokens' gradients from those of their features, which warps have in registers for 16 rows
/// from `first_row` on, or none if that is negative, and N columns: a part of the rows at a time,
/// in `gradient`. `x` has the tokens and gets the result. add_plain(row of the part), unless null,
/// adds what is not to be turned back. Synchronizes the thread block before, and to read x after.
template <int Threads, int N, class T, class Map, bool Rotates, int Rows, int Dim, int PartRows,
          int Cols, class AddPlain>
MHLA_DEVICE void unmake_sums(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                             const TokenRange& range, const Tile<Rows, Dim>& x,
                             const FloatTile<PartRows, Dim>& gradient, int first_row,
                             int first_column, WarpRows<Cols>& sum, float scale,
                             const AddPlain& add_plain) {
  constexpr bool has_plain = !std::is_null_pointer_v<AddPlain>;
  for (int begin = 0; begin < Rows; begin += PartRows) {
    const int part_row = first_row - begin;
    const bool is_here = part_row >= 0 && part_row < PartRows;
    const TokenRange part = range.from(range.begin + begin);
    block.sync();  // the previous part has been read
    if (is_here)
      sum.template for_each_pair<N>(block, [&](int half, int col, float first, float second) {
        gradient.write_pair(part_row + WarpRows<Cols>::row(block, half), first_column + col,
                            scale * first, scale * second);
      });
    block.sync();
    if constexpr (has_plain) {
      turn_back<Threads>(block, of, part, gradient);
      block.sync();
      if (is_here) add_plain(part_row);
      block.sync();
    }
    unmake_features<Threads, Rotates && !has_plain>(
        block, of, part,
        Tile<PartRows, Dim>{x.begin + static_cast<Shared>(begin * Tile<Rows, Dim>::stride)},
        gradient, [](int) { return 1.0f; }, [](int, int, typename Strips<Dim>::Elements&) {});
  }
  block.sync();
}
/// Adds a warp's sums, times factor(half), to 16 rows and N columns of a tile.
template <int N, int Rows, int Dim, int Cols, class Factor>
MHLA_DEVICE void add_sums(const Block& block, const FloatTile<Rows, Dim>& gradient, int first_row,
                          int first_column, WarpRows<Cols>& sum, const Factor& factor) {
  using Pair = typename FloatTile<Rows, Dim>::Pair;
  sum.template for_each_pair<N>(block, [&](int half, int col, float first, float second) {
    const int row = first_row + WarpRows<Cols>::row(block, half);
    col += first_column;
    const auto before = machine::read<Pair>(gradient.at(row, col));
    const float times = factor(half);
    gradient.write_pair(row, col, before.first + times * first, before.second + times * second);
  });
}

/// Common to the kernels of the backward pass.
template <class Traits>
struct PairGradientOperands {
  typename Traits::Operands of;
  Tokens<const typename Traits::T> dy;
  float* weights;      // r, [batch, heads, query entries]; both null without a normalizer
  float* sum_weights;  // c
  float gradient_scale;

  MHLA_DEVICE Index row(Index item, Index head, Index entry) const {
    return (item * of.sharing.all_heads() + head) * of.query_entries() + entry;
  }
  /// r and c of a tile's query, 0 if there is none.
  MHLA_DEVICE QueryWeights weights_of(const TokenRange& xs, int x) const {
    if (xs.begin + x >= xs.end) return {0, 0};
    const Index at = row(xs.item, xs.head, xs.begin + x);
    return {machine::load_from(weights + at), machine::load_from(sum_weights + at)};
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
