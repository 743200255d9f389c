// SPDX-License-Identifier: MIT
// A rotation lowered to run-time tables: the cosine and sine of every position that a call's tokens
// have, on every axis.
// Angles are computed in double: in float they would be off by 1e-3 at position 31,499.
#pragma once

#include <mhla/core/executor.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/rotation.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

template <class A>
struct RotationTable {
  /// The columns of a row that hold an axis's pairs. If pairs are neighbours, tables have an entry
  /// for every column, the sine with its sign, in whole vectors: entries of other axes in them
  /// rotate by 0.
  struct Axis {
    Index first = 0;  // column, or pair where partners are apart
    Index count = 0;  // columns, or pairs
    Index begin = 0;  // first position
    Span<A> cosine;   // [positions, count]
    Span<A> sine;     // [positions, count]
  };
  RotationPairs layout{0, 0};
  Axis axis[3];
  // turn, null without a rotation: calls without one do not compile its kernels.
  void (RotationTable::*turn_rows)(const Panel<A>&, const Index (&)[3], Turn) const = nullptr;

  bool rotates() const { return layout.step != 0; }
  bool neighbours() const { return layout.step == 2 && layout.gap == 1; }

  /// R or R^T of rows, in place: features of tokens that are consecutive on the last axis, the
  /// first at `coordinate`.
  MHLA_OUT_OF_LINE void turn(const Panel<A>& rows, const Index (&coordinate)[3], Turn turn) const {
    with_kernels<A>([&](auto kernels) {
      for (Index r = 0; r < rows.rows; ++r)
        for (int a = 0; a < 3; ++a) {
          const Axis& of = axis[a];
          if (of.count == 0) continue;
          const Index position = coordinate[a] - of.begin + (a == 2 ? r : 0);
          const A* cosine = of.cosine.data + position * of.count;
          const A* sine = of.sine.data + position * of.count;
          A* const row = rows.row(r);
          const bool back = turn == Turn::back;
          if (neighbours()) {
            kernels.turn_neighbours(of.count, row + of.first, cosine, sine, back);
          } else if (layout.step == 1) {
            kernels.turn_apart(of.count, row + of.first, row + of.first + layout.gap, cosine, sine,
                               back);
          } else {
            for (Index j = 0; j < of.count; ++j) {
              A* const x = row + (of.first + j) * layout.step;
              kernels.turn_apart(1, x, x + layout.gap, cosine + j, sine + j, back);
            }
          }
        }
    });
  }
};

/// Cosines and sines of position * frequency for some frequencies. In float, the angles of a
/// stretch of positions are its first angle plus those of the first stretch, so that of consecutive
/// positions most take a complex product instead of two function calls; errors of a double do not
/// show.
template <class A>
class CirclingAngles {
 public:
  /// Maximum frequencies: those of a cache line.
  static constexpr Index most = 16;

  void add(double frequency) {
    frequency_[count_] = frequency;
    for (Index i = 0; i < stretch; ++i) set(offset_[i], count_, i);
    ++count_;
  }
  /// cosine [count], sine [count]
  void at(Index position, A* cosine, A* sine) {
    const Index i = position % stretch;
    if (position - i != first_) {
      first_ = position - i;
      for (Index c = 0; c < count_; ++c) set(begin_, c, first_);
    }
    const Points& offset = offset_[i];
    for (Index c = 0; c < count_; ++c) {
      cosine[c] =
          static_cast<A>(begin_.cosine[c] * offset.cosine[c] - begin_.sine[c] * offset.sine[c]);
      sine[c] =
          static_cast<A>(begin_.sine[c] * offset.cosine[c] + begin_.cosine[c] * offset.sine[c]);
    }
  }

 private:
  // 1: every angle is computed directly.
  static constexpr Index stretch = std::is_same_v<A, float> ? 32 : 1;

  struct Points {
    double cosine[std::size_t{most}];
    double sine[std::size_t{most}];
  };
  void set(Points& points, Index c, Index position) const {
    const double angle = static_cast<double>(position) * frequency_[c];
    points.cosine[c] = std::cos(angle);
    points.sine[c] = std::sin(angle);
  }

  Index count_ = 0;
  double frequency_[std::size_t{most}];
  Index first_ = -1;  // position of the stretch
  Points begin_;      // its angles
  Points offset_[std::size_t{stretch}];
};

/// Takes the tables for every position in `box` from the arena, and fills them, pairs distributed
/// over slots, unless the arena only measures. A position has the same bits in any box.
template <class A, class Rotation>
RotationTable<A> rotation_table(Arena& arena, const Rotation& rotation, int rank, Index feature_dim,
                                const GridBox& box, const ExecutorRef& executor) {
  RotationTable<A> table;
  if constexpr (!std::is_same_v<Rotation, NoRotation>) {
    table.layout = rotation.pairs(feature_dim);
    table.turn_rows = &RotationTable<A>::turn;
    const bool neighbours = table.neighbours();
    // Columns begin and end at boundaries of the longest vectors, if rows do.
    constexpr Index longest = 16;
    const Index unit = neighbours && feature_dim % longest == 0 ? longest : 1;
    Index pairs_before = 0;
    for (int a = 3 - rank; a < 3; ++a) {
      auto& axis = table.axis[a];
      const Index positions = box.extent(a);
      const Index first_pair = pairs_before;
      const Index pairs = rotation.axis_pairs(a - 3 + rank, rank, feature_dim / 2);
      pairs_before += pairs;
      const Index width = neighbours ? 2 : 1;
      axis.begin = box.begin[a];
      axis.first = width * first_pair / unit * unit;
      axis.count = pairs == 0 ? 0 : ceil_div(width * pairs_before, unit) * unit - axis.first;
      axis.cosine = arena.take<A>(checked_mul(positions, axis.count));
      axis.sine = arena.take<A>(checked_mul(positions, axis.count));
      if (arena.measures()) continue;
      // Slots write to separate cache lines.
      constexpr Index line = CirclingAngles<A>::most;
      executor.parallel_for(ceil_div(axis.count, line), [&](Index task, Index /*slot*/) {
        const Index first = task * line;
        const Index end = (std::min)(axis.count, first + line);
        CirclingAngles<A> angles;
        for (Index column = first; column < end; column += width) {
          const Index j = (axis.first + column) / width - first_pair;  // of the axis's pairs
          const bool turned = j >= 0 && j < pairs;
          angles.add(turned ? rotation.frequency(j, pairs) : 0.0);
        }
        A cosine[std::size_t{line}];
        A sine[std::size_t{line}];
        for (Index position = 0; position < positions; ++position) {
          angles.at(axis.begin + position, cosine, sine);
          for (Index i = 0; i * width < end - first; ++i) {
            const Index at = position * axis.count + first + i * width;
            axis.cosine[at] = cosine[i];
            axis.sine[at] = neighbours ? -sine[i] : sine[i];
            if (!neighbours) continue;
            axis.cosine[at + 1] = cosine[i];
            axis.sine[at + 1] = sine[i];
          }
        }
      });
    }
  }
  return table;
}

}  // namespace cpu

MHLA_NAMESPACE_END
