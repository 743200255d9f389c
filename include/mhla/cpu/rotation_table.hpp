// SPDX-License-Identifier: MIT
// A rotation lowered to run-time tables: the cosine and sine of every position on every axis.
// Angles are computed in double: in float they are wrong by 1e-3 at position 31,499.
#pragma once

#include <cmath>
#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/rotation.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cpu {

template <class A>
struct RotationTable {
  struct Axis {
    Index first_pair = 0;
    Index pairs = 0;
    Span<A> cosine;  // [positions, pairs]
    Span<A> sine;    // [positions, pairs]
  };
  RotationPairs layout{0, 0};
  Axis axis[3];

  bool rotates() const { return layout.step != 0; }

  /// R x, in place: `row` holds feature_dim features of a token at `coordinate`.
  void rotate(A* row, const Index (&coordinate)[3]) const { turn<false>(row, coordinate); }

  /// R^T g, in place: the adjoint of `rotate`, which is its inverse.
  void rotate_back(A* row, const Index (&coordinate)[3]) const { turn<true>(row, coordinate); }

 private:
  template <bool Back>
  void turn(A* row, const Index (&coordinate)[3]) const {
    for (int a = 0; a < 3; ++a) {
      const A* cosine = axis[a].cosine.data + coordinate[a] * axis[a].pairs;
      const A* sine = axis[a].sine.data + coordinate[a] * axis[a].pairs;
      A* first = row + axis[a].first_pair * layout.step;
      A* second = first + layout.gap;
      for (Index j = 0; j < axis[a].pairs; ++j) {
        const A x = first[j * layout.step];
        const A y = second[j * layout.step];
        const A s = Back ? -sine[j] : sine[j];
        first[j * layout.step] = x * cosine[j] - y * s;
        second[j * layout.step] = x * s + y * cosine[j];
      }
    }
  }
};

/// Takes the tables for every position of both grids from the arena, and fills them, shared out by
/// pair, unless the arena only measures.
template <class A, class Rotation>
RotationTable<A> rotation_table(Arena& arena, const Rotation& rotation, int rank, Index feature_dim,
                                const Grid& query_grid, const Grid& key_grid,
                                const ExecutorRef& executor) {
  RotationTable<A> table;
  if constexpr (!std::is_same_v<Rotation, NoRotation>) {
    table.layout = rotation.pairs(feature_dim);
    Index pairs = 0;
    for (int a = 3 - rank; a < 3; ++a) {
      auto& axis = table.axis[a];
      const Index positions =
          query_grid.extent[a] > key_grid.extent[a] ? query_grid.extent[a] : key_grid.extent[a];
      axis.first_pair = pairs;
      axis.pairs = rotation.axis_pairs(a - 3 + rank, rank, feature_dim / 2);
      pairs += axis.pairs;
      axis.cosine = arena.take<A>(checked_mul(positions, axis.pairs));
      axis.sine = arena.take<A>(checked_mul(positions, axis.pairs));
      if (arena.measures()) continue;
      executor.parallel_for(axis.pairs, [&](Index j, Index /*slot*/) {
        const double frequency = rotation.frequency(j, axis.pairs);
        for (Index position = 0; position < positions; ++position) {
          const double angle = static_cast<double>(position) * frequency;
          axis.cosine[position * axis.pairs + j] = static_cast<A>(std::cos(angle));
          axis.sine[position * axis.pairs + j] = static_cast<A>(std::sin(angle));
        }
      });
    }
  }
  return table;
}

}  // namespace cpu

MHLA_NAMESPACE_END
