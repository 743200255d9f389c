// SPDX-License-Identifier: MIT
// Features of a tile of tokens: phi, scale and rotation in float, in place, after the copy has
// landed and before products read the tile, so that a feature is rounded once. The same pass
// provides the unrotated features in float, for key sums and denominators.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/tile.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/machine.cuh>
#include <mhla/cuda/rotation_table.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// q or k, and what computes its features: s phi(x), rotated if there is a rotation.
template <class T, class Map, bool Rotates>
struct FeatureTokens {
  Tokens<const T> x;
  Map map;
  float scale;
  RotationTable<float> rotation;
};

/// A tile is processed in quads: two adjacent elements, and the two half a row further. So a
/// rotation's pairs are in one quad, whether half-split or interleaved.
template <int Dim>
struct Quads {
  static_assert(Dim % 4 == 0);
  static constexpr int count = Dim / 4;  // of a row
  static constexpr int lanes = lanes_of_row(Dim);
  static constexpr int of_lane = (count + lanes - 1) / lanes;

  /// The first column of quad `n`'s first half; the second is Dim / 2 further.
  MHLA_HOST_DEVICE static constexpr int column(int n) { return 2 * n; }
  /// The row of a thread, among those that all threads process at once. A warp's rows are spaced so
  /// that its lanes read different banks.
  MHLA_HOST_DEVICE static constexpr int row(int thread) {
    constexpr int apart = lanes / 4;
    const int warp = thread / 32;
    return warp / apart * 8 + warp % apart + thread % 32 / lanes * apart;
  }
  /// Whether they do, for elements of ElementSize bytes and rows Stride bytes apart.
  template <int ElementSize, int Stride>
  static constexpr bool meet_no_bank_twice = has_no_bank_conflicts<2 * ElementSize>([](int lane) {
    return row(lane) * Stride + column(lane % lanes) * ElementSize;
  });
  /// Whether it writes what the lanes of a row share.
  MHLA_DEVICE static bool leads(const Block& block) { return block.lane() % lanes == 0; }

  /// The sum over the lanes of a row. The warp meets.
  MHLA_DEVICE static float sum_of_row(float value) {
    for (int mask = 1; mask < lanes; mask *= 2) value += machine::exchange(value, mask);
    return value;
  }
  /// Calls f(n, i) for this lane's quads of a row, the i-th one n.
  template <class F>
  MHLA_DEVICE static void for_each(const Block& block, const F& f) {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < of_lane; ++i) {
      const int n = i * lanes + block.lane() % lanes;
      if (n < count) f(n, i);
    }
  }
  /// Calls f(row, place) for each of Rows rows, by the lanes that share it.
  template <int Threads, int Rows, class F>
  MHLA_DEVICE static void for_each_row(const Block& block, const BlockTable& table,
                                       const TokenRange& range, const F& f) {
    static_assert(Threads % 128 == 0 && Rows % (Threads / lanes) == 0);
    MHLA_DEVICE_ROLLED
    for (int first = 0; first < Rows; first += Threads / lanes) {
      const int row_of_tile = first + row(block.thread);
      f(row_of_tile, place_of(table, range, row_of_tile));
    }
  }
};

/// The cosine and sine of a rotation's pair at a position.
struct Angle {
  float cosine;
  float sine;
};
/// Those of a token, located once, since that takes divisions.
struct Angles {
  const RotationTable<float>* rotation;
  Index begin[3];  // of the token's angles in each axis's table, if it began with pair 0

  MHLA_DEVICE Angles(const RotationTable<float>& of, const Grid& grid, Index position)
      : rotation(&of) {
    MHLA_DEVICE_UNROLL
    for (int a = 0; a < 3; ++a) {
      const auto& axis = of.axis[a];
      begin[a] = axis.count == 0 ? 0 : grid.coordinate(position, a) * axis.count - axis.first;
    }
  }
  MHLA_DEVICE Angle at(Index pair) const {
    const auto angle = [&](int a) -> Angle {
      const auto& axis = rotation->axis[a];
      return {machine::load_from(axis.cosine.data + begin[a] + pair),
              machine::load_from(axis.sine.data + begin[a] + pair)};
    };
    // Every axis by constant index: registers have no addresses.
    if (pair < rotation->axis[0].count) return angle(0);
    return pair < rotation->axis[1].first + rotation->axis[1].count ? angle(1) : angle(2);
  }
};

MHLA_DEVICE void turn_pair(const Angle& angle, Turn turn, float& x, float& y) {
  const float sine = turn == Turn::forward ? angle.sine : -angle.sine;
  const float turned = x * angle.cosine - y * sine;
  y = y * angle.cosine + x * sine;
  x = turned;
}

/// Rotates the pairs of quad `n` of a row of Dim features.
template <int Dim>
MHLA_DEVICE void turn_quad(const Angles& angles, int n, Turn turn, float (&quad)[4]) {
  if (angles.rotation->layout.gap == 1) {  // neighbours
    turn_pair(angles.at(n), turn, quad[0], quad[1]);
    turn_pair(angles.at(n + Dim / 4), turn, quad[2], quad[3]);
  } else {  // half a row apart
    turn_pair(angles.at(2 * n), turn, quad[0], quad[2]);
    turn_pair(angles.at(2 * n + 1), turn, quad[1], quad[3]);
  }
}

template <class T, int Rows, int Cols>
MHLA_DEVICE void read_quad(const Tile<Rows, Cols>& tile, int row, int n, float (&quad)[4]) {
  static_assert(Quads<Cols>::template meet_no_bank_twice<2, Tile<Rows, Cols>::stride>);
  const auto first = machine::read<std::uint32_t>(tile.at(row, Quads<Cols>::column(n)));
  const auto second = machine::read<std::uint32_t>(tile.at(row, Quads<Cols>::column(n) + Cols / 2));
  quad[0] = machine::first_of<T>(first);
  quad[1] = machine::second_of<T>(first);
  quad[2] = machine::first_of<T>(second);
  quad[3] = machine::second_of<T>(second);
}
/// Rounds a quad in place.
template <class T, int Rows, int Cols>
MHLA_DEVICE void write_quad(const Tile<Rows, Cols>& tile, int row, int n, float (&quad)[4]) {
  MHLA_DEVICE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t pair = machine::rounded_pair<T>(quad[2 * half], quad[2 * half + 1]);
    machine::write(tile.at(row, Quads<Cols>::column(n) + half * (Cols / 2)), pair);
    quad[2 * half] = machine::first_of<T>(pair);
    quad[2 * half + 1] = machine::second_of<T>(pair);
  }
}

/// Replaces a tile of the range's first tokens by their features, times weight(row). use(row, n, i,
/// quad) gets every weighted quad of present tokens, the lane's i-th: before rotation or, without
/// one, as rounded in the tile, so that sums which nearly cancel products of the tile are of the
/// same numbers. row_end(row) follows each row, where the warp meets. Synchronizes the thread block
/// before and after.
template <int Threads, class T, class Map, bool Rotates, int Rows, int Dim, class Weight, class Use,
          class RowEnd>
MHLA_DEVICE void make_features(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                               const TokenRange& range, const Tile<Rows, Dim>& tile,
                               const Weight& weight, const Use& use, const RowEnd& row_end) {
  Quads<Dim>::template for_each_row<Threads, Rows>(
      block, of.x.table, range, [&](int row, const Place& place) {
        const bool present = place.token >= 0;
        const float row_weight = present ? weight(row) : 0.0f;
        [[maybe_unused]] const Angles angles(of.rotation, of.x.table.grid, place.position);
        Quads<Dim>::for_each(block, [&](int n, int i) {
          float quad[4] = {0, 0, 0, 0};
          if (present) {
            read_quad<T>(tile, row, n, quad);
            for (float& x : quad) x = row_weight * (of.scale * of.map.value(x));
            if constexpr (Rotates) {
              use(row, n, i, quad);
              turn_quad<Dim>(angles, n, Turn::forward, quad);
            }
          }
          write_quad<T>(tile, row, n, quad);
          if constexpr (!Rotates)
            if (present) use(row, n, i, quad);
        });
        row_end(row);
      });
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
