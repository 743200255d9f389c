// SPDX-License-Identifier: MIT
// A rotation lowered to run-time tables: the cosine and sine of every position on every axis,
// computed in double on the device. Needs no CUDA header: rotation_table.cuh fills the tables.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/rotation.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda {

template <class A>
struct RotationTable {
  struct Axis {
    Index first = 0;  // pair
    Index count = 0;  // pairs
    Index positions = 0;
    Span<A> cosine;  // [positions, count]
    Span<A> sine;    // [positions, count]
  };
  RotationPairs layout{0, 0};
  Axis axis[3];

  MHLA_HOST_DEVICE bool rotates() const { return layout.step != 0; }

  /// Rotates pair `c` of the features of a token at `position` of `grid`.
  MHLA_HOST_DEVICE void turn(const Grid& grid, Index position, Index c, const A* in, A* out,
                             Turn turn) const {
    int a = 0;
    while (c >= axis[a].first + axis[a].count) ++a;
    const Index at = grid.coordinate(position, a) * axis[a].count + c - axis[a].first;
    const A cosine = axis[a].cosine[at];
    const A sine = turn == Turn::forward ? axis[a].sine[at] : -axis[a].sine[at];
    const Index i = c * layout.step;
    const A x = in[i];
    const A y = in[i + layout.gap];
    out[i] = x * cosine - y * sine;
    out[i + layout.gap] = y * cosine + x * sine;
  }
};

/// Takes the memory of tables for every position of both grids from the arena.
template <class A, class Rotation>
RotationTable<A> rotation_table(Arena& arena, const Rotation& rotation, int rank, Index feature_dim,
                                const Grid& query_grid, const Grid& key_grid) {
  RotationTable<A> table;
  if constexpr (!std::is_same_v<Rotation, NoRotation>) {
    table.layout = rotation.pairs(feature_dim);
    Index first = 0;
    for (int a = 3 - rank; a < 3; ++a) {
      auto& axis = table.axis[a];
      axis.first = first;
      axis.count = rotation.axis_pairs(a - 3 + rank, rank, feature_dim / 2);
      axis.positions =
          query_grid.extent[a] > key_grid.extent[a] ? query_grid.extent[a] : key_grid.extent[a];
      first += axis.count;
      axis.cosine = arena.take<A>(checked_mul(axis.positions, axis.count));
      axis.sine = arena.take<A>(checked_mul(axis.positions, axis.count));
    }
  }
  return table;
}

}  // namespace cuda

MHLA_NAMESPACE_END
