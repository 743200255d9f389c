// SPDX-License-Identifier: MIT
// A rotation lowered to run-time tables: the cosine and sine of every position on every axis,
// computed in double on the device. Needs no CUDA header: tables.cuh fills the tables.
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/rotation.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// The cosine and sine of a rotation's pair at a coordinate.
template <class A>
struct alignas(2 * sizeof(A)) Angle {
  A cosine;
  A sine;
};

/// Where a token's angles of adjacent pairs are: in row `first` + the sum of coordinate * step.
struct alignas(16) AngleRow {
  std::int32_t step[3];
  std::int32_t first;

  MHLA_HOST_DEVICE std::int32_t of(const std::int32_t (&coordinate)[3]) const {
    return first + coordinate[0] * step[0] + coordinate[1] * step[1] + coordinate[2] * step[2];
  }
};

/// Rows of angles, one per pair: a row for every coordinate of every axis; and, where a kernel
/// reads pairs of several axes at once, one for every combination of their coordinates. What
/// belongs to other axes is zero.
template <class A>
struct RotationTable {
  struct Axis {
    Index first = 0;      // pair
    Index count = 0;      // pairs
    Index begin = 0;      // coordinate of the first position
    Index positions = 0;  // coordinates
  };
  RotationPairs layout{0, 0};
  Axis axis[3];
  Index first_row[3][3] = {{-1, -1, -1}, {-1, -1, -1}, {-1, -1, -1}};  // of axes a to b; or none
  Index pairs = 0;                                                     // of a row
  Index strip = 0;        // order of a row's pairs: see pair_of
  Span<Angle<A>> angles;  // [rows, pairs]
  Span<AngleRow> halves;  // [2, strips]: of the halves of strips

  MHLA_HOST_DEVICE int axis_of(Index pair) const {
    return pair < axis[0].count ? 0 : pair < axis[2].first ? 1 : 2;
  }
  /// Rows of axes a to b.
  MHLA_HOST_DEVICE Index rows(int a, int b) const {
    Index product = 1;
    for (int x = a; x <= b; ++x) product *= axis[x].positions;
    return product;
  }

  /// The first pair of half h of strip s.
  MHLA_HOST_DEVICE Index first_pair(Index h, Index s) const {
    return layout.gap == 1 ? h * (pairs / 2) + s * (strip / 2) : s * strip + h * (strip / 2);
  }
  MHLA_HOST_DEVICE AngleRow row_of(Index h, Index s) const {
    const int a = axis_of(first_pair(h, s));
    const int b = axis_of(first_pair(h, s) + strip / 2 - 1);
    AngleRow row{{0, 0, 0}, static_cast<std::int32_t>(first_row[a][b])};
    for (int x = a; x <= b; ++x) row.step[x] = static_cast<std::int32_t>(rows(x + 1, b));
    return row;
  }
  /// The pair whose angle is n-th in a row. Kernels that process a row in strips of elements (see
  /// fused/features.cuh) read vectors of two angles, of which those of all strips are adjacent.
  MHLA_HOST_DEVICE Index pair_of(Index n) const {
    if (strip == 0) return n;
    const Index strips = pairs / strip;
    const Index of_strip = n / 2 / strips * 2 + n % 2;
    return first_pair(of_strip / (strip / 2), n / 2 % strips) + of_strip % (strip / 2);
  }

  /// Rotates pair `c` of the features of a token, where angles are in order of pairs.
  MHLA_HOST_DEVICE void turn(const std::int32_t (&coordinate)[3], Index c, const A* in, A* out,
                             Turn turn) const {
    const int a = axis_of(c);
    const Angle<A> angle = angles[(first_row[a][a] + coordinate[a]) * pairs + c];
    const A sine = turn == Turn::forward ? angle.sine : -angle.sine;
    const Index i = c * layout.step;
    const A x = in[i];
    const A y = in[i + layout.gap];
    out[i] = x * angle.cosine - y * sine;
    out[i + layout.gap] = y * angle.cosine + x * sine;
  }
};

/// Takes the memory of a table for every position in a box from the arena.
template <class A, class Rotation>
RotationTable<A> rotation_table(Arena& arena, const Rotation& rotation, int rank, Index feature_dim,
                                const GridBox& box, Index strip = 0) {
  RotationTable<A> table;
  if constexpr (!std::is_same_v<Rotation, NoRotation>) {
    table.layout = rotation.pairs(feature_dim);
    table.pairs = feature_dim / 2;
    table.strip = strip;
    Index first = 0;
    Index rows = 0;
    const auto add_rows = [&](int a, int b) {
      if (table.first_row[a][b] >= 0) return;
      table.first_row[a][b] = rows;
      rows += table.rows(a, b);
    };
    for (int a = 3 - rank; a < 3; ++a) {
      auto& axis = table.axis[a];
      axis.first = first;
      axis.count = rotation.axis_pairs(a - 3 + rank, rank, table.pairs);
      axis.begin = box.begin[a];
      axis.positions = box.extent(a);
      first += axis.count;
      add_rows(a, a);
    }
    const Index strips = strip == 0 ? 0 : table.pairs / strip;
    for (Index h = 0; h < 2; ++h)
      for (Index s = 0; s < strips; ++s) {
        const Index pair = table.first_pair(h, s);
        add_rows(table.axis_of(pair), table.axis_of(pair + strip / 2 - 1));
      }
    if (rows > 0x7fffffff)
      throw ShapeError("mhla: on CUDA a rotation has at most 2147483647 rows of angles");
    table.angles = arena.take<Angle<A>>(checked_mul(rows, table.pairs));
    table.halves = arena.take<AngleRow>(2 * strips);
  }
  return table;
}

}  // namespace cuda

MHLA_NAMESPACE_END
