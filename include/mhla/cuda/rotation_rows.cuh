// SPDX-License-Identifier: MIT
// The rotation of rows of features by kernels of launch_rows().
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/chip/launch.cuh>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/row_units.cuh>
#include <mhla/cuda/rotation_table.hpp>
#include <mhla/policy/rotation.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// What they read of a rotation's table. A token's angles are the sum of its axes' rows, of which
/// all but one are zero.
template <class A>
class RotationRows {
 public:
  /// For units of that many pairs.
  RotationRows(const RotationTable<A>& table, Index pairs_of_unit)
      : angles_(table.angles.data),
        row_bytes_(static_cast<std::int32_t>(table.pairs * Index{sizeof(Angle<A>)})),
        first_pair_{static_cast<std::uint32_t>(table.axis[0].count),
                    static_cast<std::uint32_t>(table.axis[2].first)} {
    for (int a = 0; a < 3; ++a)
      if (table.first_row[a][a] > 0)
        first_row_[a] = static_cast<std::int32_t>(table.first_row[a][a]);
    while (first_axis_ < 2 && table.axis[first_axis_].positions == 0) ++first_axis_;
    for (const std::uint32_t first : first_pair_)
      if (first % pairs_of_unit != 0) mixes_axes_ = true;
  }

  /// Calls f(unit, turn) for the units of a share of a token's row; turn(direction, value) rotates
  /// the unit's pairs, or does nothing if Units has no pairs.
  template <class Units, class F>
  MHLA_DEVICE void for_each(const Units& units, const RowShare& share, const Place& place,
                            const F& f) const {
    if constexpr (Units::has_pairs) {
      const std::int32_t row[3] = {first_row_[0] + place.coordinate[0],
                                   first_row_[1] + place.coordinate[1],
                                   first_row_[2] + place.coordinate[2]};
      const auto visit = [&](auto mixes_axes) {
        units.for_each(share, [&](const auto unit) {
          f(unit, [&](Turn turn, auto& value) {
            A angles[unit.count];
            load<decltype(mixes_axes)::value>(row, unit, angles);
            rotate(unit, angles, turn, value);
          });
        });
      };
      mixes_axes_ ? visit(std::true_type()) : visit(std::false_type());
    } else {
      units.for_each(share, [&](const auto unit) { f(unit, [](Turn, auto&) {}); });
    }
  }

 private:
  /// The cosine and sine of each pair of a unit.
  template <bool mixes_axes, class Unit>
  MHLA_DEVICE void load(const std::int32_t (&row)[3], const Unit& unit,
                        A (&angles)[Unit::count]) const {
    if constexpr (mixes_axes) {
      load_row(row[2], unit, angles);
      int axis = 2;
      std::int32_t next = row[1];
      MHLA_DEVICE_ROLLED
      do {
        A more[Unit::count];
        load_row(next, unit, more);
        MHLA_DEVICE_UNROLL
        for (std::size_t i = 0; i < Unit::count; ++i) angles[i] += more[i];
        next = row[0];
      } while (--axis > first_axis_);
    } else {
      const bool is_first = unit.pair < first_pair_[0];
      load_row(is_first ? row[0] : unit.pair < first_pair_[1] ? row[1] : row[2], unit, angles);
    }
  }
  template <class Unit>
  MHLA_DEVICE void load_row(std::int32_t row, const Unit& unit, A (&angles)[Unit::count]) const {
    const auto* const from = reinterpret_cast<const A*>(
        after(angles_ + unit.pair, machine::wide_product(row, row_bytes_)));
    if constexpr (Unit::count == 2) {
      angles[0] = from[0];
      angles[1] = from[1];
    } else {
      load_vectors<int{Unit::count}>(from, angles);
    }
  }
  template <class Unit>
  MHLA_DEVICE static void rotate(const Unit&, const A (&angles)[Unit::count], Turn turn,
                                 A (&value)[Unit::count]) {
    MHLA_DEVICE_UNROLL
    for (int p = 0; p < int{Unit::count / 2}; ++p) {
      const A cosine = angles[2 * p];
      const A sine = turn == Turn::forward ? angles[2 * p + 1] : -angles[2 * p + 1];
      A& x = value[Unit::first_of(p)];
      A& y = value[Unit::second_of(p)];
      const A turned = x * cosine - y * sine;
      y = y * cosine + x * sine;
      x = turned;
    }
  }

  const Angle<A>* angles_;
  std::int32_t row_bytes_;
  std::int32_t first_row_[3] = {};
  std::uint32_t first_pair_[2];  // of the second axis and the third
  int first_axis_ = 0;
  bool mixes_axes_ = false;  // a unit may have pairs of several
};

}  // namespace cuda

MHLA_NAMESPACE_END
