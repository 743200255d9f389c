// SPDX-License-Identifier: MIT
// The adjoint of attention as pairs of tokens, from q, k, v, mix and dy alone. With P = Q^r K^r^T,
// dP = dY V^T, m the weights of pairs in mix and s their sum over keys:
//
//   den = s(m P) + epsilon   r = 1 / den   c = -s(m P o dP) r^2      (r = 1, c = 0 undivided)
//   dQ^r = W K^r   dK^r = W^T Q^r   dV = (m r P)^T dY                W = m (r dP + c)
//   dm_ib = sum of P (r dP + c) over the tokens of i and b
//
// r dP and c are large and nearly cancel if values have a common mean: W is rounded to 16 bits
// after that, scaled by a power of two that keeps it in range. There is a kernel for each side, and
// one for dm; each owns its sums, so that their order is fixed: quadratic_query_gradient.cuh,
// quadratic_key_gradient.cuh and quadratic_mixing_gradient.cuh; the first passes r and c to the
// others through memory. If a rotation applies only to the numerators' features, c's parts are
// separate sums. This file has what the three share.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/float_tile.cuh>
#include <mhla/cuda/fused/product.cuh>
#include <mhla/cuda/fused/quadratic.cuh>
#include <mhla/cuda/fused/tile.cuh>
#include <mhla/cuda/fused/token_pairs.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/machine.cuh>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Turns the gradient of features into that of tokens: s phi'(x) o R^T g, or without R if that is
/// done, replacing x in the tile. Synchronizes the thread block before and after.
template <int Threads, bool turns_back, class T, class Map, bool Rotates, int Rows, int Dim>
MHLA_DEVICE void unmake_features(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                                 const TokenRange& range, const Tile<Rows, Dim>& tile,
                                 const FloatTile<Rows, Dim>& gradient) {
  Quads<Dim>::template for_each_row<Threads, Rows>(
      block, of.x.table, range, [&](int row, const Place& place) {
        if (place.token < 0) return;
        [[maybe_unused]] const Angles angles(of.rotation, of.x.table.grid, place.position);
        Quads<Dim>::for_each(block, [&](int n, int) {
          float quad[4];
          gradient.read_quad(row, n, quad);
          if constexpr (turns_back) turn_quad<Dim>(angles, n, Turn::back, quad);
          float x[4];
          read_quad<T>(tile, row, n, x);
          for (int e = 0; e < 4; ++e) quad[e] *= of.scale * of.map.derivative(x[e]);
          write_quad<T>(tile, row, n, quad);
        });
      });
}

/// R^T g of a tile's present tokens, in place, before sums of unrotated features are added.
/// Synchronizes the thread block before and after.
template <int Threads, class T, class Map, int Rows, int Dim>
MHLA_DEVICE void turn_back(const Block& block, const FeatureTokens<T, Map, true>& of,
                           const TokenRange& range, const FloatTile<Rows, Dim>& gradient) {
  Quads<Dim>::template for_each_row<Threads, Rows>(
      block, of.x.table, range, [&](int row, const Place& place) {
        if (place.token < 0) return;
        const Angles angles(of.rotation, of.x.table.grid, place.position);
        Quads<Dim>::for_each(block, [&](int n, int) {
          const int col = Quads<Dim>::column(n);
          float quad[4];
          gradient.read_quad(row, n, quad);
          turn_quad<Dim>(angles, n, Turn::back, quad);
          gradient.write_pair(row, col, quad[0], quad[1]);
          gradient.write_pair(row, col + Dim / 2, quad[2], quad[3]);
        });
      });
}

/// Each thread adds its sums of products, times factor(row).
template <int Rows, int Dim, class Sum, class Factor>
MHLA_DEVICE void add_sums(const Block& block, const FloatTile<Rows, Dim>& gradient, Sum& sum,
                          const Factor& factor) {
  using Pair = typename FloatTile<Rows, Dim>::Pair;
  sum.for_each_pair(block, [&](int row, int col, float first, float second) {
    const auto before = machine::read<Pair>(gradient.at(row, col));
    const float times = factor(row);
    gradient.write_pair(row, col, before.first + times * first, before.second + times * second);
  });
}

/// Whether a rotated feature, a sum of two, may be infinite or NaN in T.
template <class T>
MHLA_DEVICE bool is_large(float feature) {
  constexpr float limit = std::is_same_v<T, BFloat16> ? 1e38f : 3e4f;
  return !(feature <= limit && feature >= -limit);
}
/// Writes what each warp's threads found to `flags`. The warp meets.
MHLA_DEVICE void write_flags(const Block& block, float found, Shared flags) {
  for (int mask = 1; mask < 32; mask *= 2) found += machine::exchange(found, mask);
  if (block.lane() == 0)
    machine::write<float>(flags + static_cast<Shared>(block.warp() * 4), found);
}

/// make_features, and flags for infinities among them.
template <int Threads, class T, class Map, bool Rotates, int Rows, int Dim>
MHLA_DEVICE void make_flagged_features(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                                       const TokenRange& range, const Tile<Rows, Dim>& tile,
                                       bool wants_flags, Shared flags) {
  float found = 0;
  make_features<Threads>(
      block, of, range, tile, [](int) { return 1.0f; },
      [&](int, int, int, const float(&plain)[4]) {
        for (const float feature : plain)
          if (is_large<T>(feature)) found = 1;
      },
      [](int) {});
  if (wants_flags) write_flags(block, found, flags);
}

/// sum += W V, pair by pair with `hides` if V has infinities.
template <class T, int Warps, int Rows, int N, int WarpsM, int WarpsN, class Counts>
MHLA_DEVICE void add_seen_pairs(const Block& block, Accumulators<Rows, N, WarpsM, WarpsN>& sum,
                                const Tile<Rows, Rows>& weights, const Tile<Rows, N>& values,
                                bool hides, Shared flags, const Counts& counts) {
  if (hides && found_infinities<Warps>(flags)) {
    add_counted_pairs<T>(block, sum, weights, values, counts);
  } else {
    add_pairs<T>(block, sum, weights, values);
  }
}

/// Common to the kernels of the backward pass.
template <class T, class Map, bool Rotates>
struct PairGradientOperands {
  PairOperands<T, Map, Rotates> of;
  Tokens<const T> dy;
  float* weights;      // r, [batch, heads, query entries]; both null without a normalizer
  float* sum_weights;  // c
  float gradient_scale;

  MHLA_DEVICE Index row(Index item, Index head, Index entry) const {
    return (item * of.heads() + head) * of.query_entries() + entry;
  }
  /// Copies r and c of a tile of queries to shared memory; 0 if there is none.
  template <int Rows>
  MHLA_DEVICE void read_weights(const Block& block, const TokenRange& xs, Shared r,
                                Shared c) const {
    const int x = block.thread;
    if (x >= Rows) return;
    const bool inside = xs.begin + x < xs.end;
    const Index at = row(xs.item, xs.head, xs.begin + x);
    const auto to = static_cast<Shared>(x * 4);
    machine::write<float>(r + to, inside ? machine::load_from(weights + at) : 0.0f);
    machine::write<float>(c + to, inside ? machine::load_from(sum_weights + at) : 0.0f);
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
