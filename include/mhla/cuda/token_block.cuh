// SPDX-License-Identifier: MIT
// Tokens to panels and back. Panels hold the rows of all blocks consecutively, [batch, kv_heads,
// blocks, query heads of the kv head, block tokens, dim]; a gather copies q, k, v and dy there,
// applying phi and the rotation, and the adjoints copy gradients back. Rows of absent tokens are
// zero.
#pragma once

#include <mhla/cuda/chip/row_units.cuh>
#include <mhla/cuda/gemm.cuh>
#include <mhla/cuda/tables.hpp>

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

/// 1 / den of a row, as two factors of which neither overflows; without denominators 1. Values are
/// multiplied by both in any case: a predicate would cost as much.
template <class A>
struct Inverse {
  A first = A(1);
  A second = A(1);
  bool exists = true;  // den is not 0

  MHLA_DEVICE Inverse(const A* denominators, std::uint32_t row) {
    if (denominators == nullptr) return;
    const A den = denominators[row];
    const A large = A(0x1p64);
    if (den < 1 / large && den > -1 / large) first = large;
    second = A(1) / (den * first);
    exists = den != A(0);
  }
  template <std::size_t Count>
  MHLA_DEVICE void multiply(A (&value)[Count]) const {
    MHLA_DEVICE_UNROLL
    for (std::size_t i = 0; i < Count; ++i) value[i] = value[i] * first * second;
  }
};

/// panel = tensor / den; without denominators 1, and 0 where den is 0.         // [rows, dim]
template <class T, class A>
struct Gather {
  RowFinder rows;
  TensorView<const T, 4> tensor;
  const A* denominators;
  A* panel;
  RowUnits<T, false> units;

  MHLA_DEVICE void operator()(std::uint32_t r, const RowShare& share) const {
    A* const to = units.row(panel, r);
    const Inverse<A> inverse(denominators, r);
    const auto row = rows[r];
    if (!row.present() || !inverse.exists) return units.template set_zero<A>(share, to, 1);
    const T* const from = row_after(tensor.data, row.offset_in(tensor));
    units.for_each(share, [&](const auto unit) {
      A value[unit.count];
      unit.load(from, tensor.stride[3], value);
      inverse.multiply(value);
      unit.store(to, 1, value);
    });
  }
};
template <class T, class A>
void gather(const CudaDevice& device, const PanelRows& rows, const TensorView<const T, 4>& tensor,
            A* panel, const A* denominators = nullptr) {
  const RowUnits<T, false> units(tensor.extent[3], has_aligned_rows(tensor) && is_aligned(panel));
  launch_rows(device, rows.count(), units.count,
              Gather<T, A>{RowFinder(rows), tensor, denominators, panel, units});
}

/// Calls f(std::bool_constant<adds>): kernels know at compile time what they do with their result.
template <class F>
void with_update(Update update, const F& f) {
  update == Update::accumulate ? f(std::true_type()) : f(std::false_type());
}

/// tensor (+)= panel / den, likewise.
template <class T, class A, bool Adds>
struct Scatter {
  RowFinder rows;
  const A* panel;
  const A* denominators;
  TensorView<T, 4> tensor;
  RowUnits<T, false> units;

  MHLA_DEVICE void operator()(std::uint32_t r, const RowShare& share) const {
    const A* const from = units.row(panel, r);
    const auto row = rows[r];
    if (!row.present()) return;
    T* const to = row_after(tensor.data, row.offset_in(tensor));
    const Inverse<A> inverse(denominators, r);
    if (!inverse.exists) {
      if constexpr (!Adds) units.template set_zero<A>(share, to, tensor.stride[3]);
      return;
    }
    units.for_each(share, [&](const auto unit) {
      A value[unit.count];
      unit.load(from, 1, value);
      inverse.multiply(value);
      update_unit<Adds>(unit, to, tensor.stride[3], value);
    });
  }
};
template <class T, class A>
void scatter(const CudaDevice& device, const PanelRows& rows, const A* panel,
             const TensorView<T, 4>& tensor, Update update, const A* denominators = nullptr) {
  const RowUnits<T, false> units(tensor.extent[3], has_aligned_rows(tensor) && is_aligned(panel));
  with_update(update, [&](auto adds) {
    launch_rows(device, rows.count(), units.count,
                Scatter<T, A, adds.value>{RowFinder(rows), panel, denominators, tensor, units});
  });
}

/// Zeros the tokens that a mask removes, which are in no panel.
template <class T>
struct ClearMasked {
  Divisor tokens;
  Divisor heads;
  TensorView<const std::uint8_t, 2> mask;
  TensorView<T, 4> tensor;
  RowUnits<T, false> units;

  MHLA_DEVICE void operator()(std::uint32_t r, const RowShare& share) const {
    const std::uint32_t t = tokens.divide(r);
    const std::uint32_t h = heads.divide(r);
    if (mask(r, t) != 0) return;
    units.template set_zero<Accumulator<T>>(share, &tensor(r, h, t, 0), tensor.stride[3]);
  }
};
/// Without a mask, none.
template <class T>
void clear_masked(const CudaDevice& device, const TensorView<const std::uint8_t, 2>& mask,
                  const TensorView<T, 4>& tensor) {
  if (mask.data == nullptr) return;
  const auto& extent = tensor.extent;
  const RowUnits<T, false> units(extent[3], has_aligned_rows(tensor));
  launch_rows(device, extent[0] * extent[1] * extent[2], units.count,
              ClearMasked<T>{Divisor(extent[2]), Divisor(extent[1]), mask, tensor, units});
}

/// features = scale phi(tensor), element by element, and rotated = R features  // [rows, dim]
template <class Map, class T, class A, bool Rotates>
struct MapFeatures {
  Map map;
  A scale;
  RowFinder rows;
  RotationRows<A> rotation;
  TensorView<const T, 4> tensor;
  A* features;
  A* rotated;
  RowUnits<T, Rotates> units;

  MHLA_DEVICE void operator()(std::uint32_t r, const RowShare& share) const {
    const auto row = rows[r];
    A* const to = units.row(features, r);
    A* const rotated_to = Rotates ? units.row(rotated, r) : nullptr;
    if (!row.present()) {
      units.template set_zero<A>(share, to, 1);
      if constexpr (Rotates) units.template set_zero<A>(share, rotated_to, 1);
      return;
    }
    const T* const from = row_after(tensor.data, row.offset_in(tensor));
    rotation.for_each(units, share, row.place, [&](const auto unit, const auto& turn) {
      A value[unit.count];
      unit.load(from, tensor.stride[3], value);
      for (A& x : value) x = scale * map.value(x);
      unit.store(to, 1, value);
      if constexpr (Rotates) {
        turn(Turn::forward, value);
        unit.store(rotated_to, 1, value);
      }
    });
  }
};

/// features = scale phi(inputs), row by row.
template <class Map, class A>
struct MapRows {
  Map map;
  A scale;
  RowFinder rows;
  const A* inputs;  // [rows, key_dim]
  Index key_dim;
  A* features;  // [rows, feature_dim]
  Index feature_dim;

  MHLA_HOST_DEVICE void operator()(Index r) const {
    const Span<A> out{features + r * feature_dim, feature_dim};
    const bool present = rows[static_cast<std::uint32_t>(r)].present();
    if (present) map.value(Span<const A>{inputs + r * key_dim, key_dim}, out);
    for (Index c = 0; c < feature_dim; ++c) out[c] = present ? scale * out[c] : A(0);
  }
};

/// A row for each panel of rows, to be added to them by weights.
template <class A>
struct WeightedRow {
  Divisor rows_of_panel;
  const A* weights = nullptr;  // [panels, rows]; null: all 1
  const A* sums = nullptr;     // [panels, dim]; null: nothing is added

  struct Row {
    const A* sums;
    A weight;
  };
  /// That of row r.
  MHLA_DEVICE Row of(std::uint32_t r, Index dim) const {
    const Index panel = rows_of_panel.quotient(r);
    return {sums == nullptr ? nullptr : row_after(sums, panel * dim),
            weights == nullptr ? A(1) : weights[r]};
  }
  template <class Unit>
  MHLA_DEVICE void add(const Row& row, const Unit& unit, A (&value)[Unit::count]) const {
    if (sums == nullptr) return;
    A sum[Unit::count];
    unit.load(row.sums, 1, sum);
    MHLA_DEVICE_UNROLL
    for (std::size_t i = 0; i < Unit::count; ++i) value[i] += row.weight * sum[i];
  }
};

/// out = R in, or R^T in, + a weighted row: dK += dz_b, or dQ += c z~; `out` may be `in`.
template <class A, bool Rotates>
struct TurnRows {
  RowFinder rows;
  RotationRows<A> rotation;
  Turn direction;
  WeightedRow<A> added;
  const A* in;
  A* out;
  RowUnits<A, Rotates> units;

  MHLA_DEVICE void operator()(std::uint32_t r, const RowShare& share) const {
    const A* const from = units.row(in, r);
    A* const to = units.row(out, r);
    const auto sum = added.of(r, units.dim);
    rotation.for_each(units, share, rows[r].place, [&](const auto unit, const auto& turn) {
      A value[unit.count];
      unit.load(from, 1, value);
      turn(direction, value);
      added.add(sum, unit, value);
      unit.store(to, 1, value);
    });
  }
};
template <bool Rotates, class A>
void turn(const CudaDevice& device, const PanelRows& rows, const RotationTable<A>& rotation,
          Turn direction, const WeightedRow<A>& added, Index feature_dim, const A* in, A* out) {
  const RowUnits<A, Rotates> units(
      feature_dim, is_aligned(in) && is_aligned(out) && is_aligned(added.sums), rotation.layout);
  launch_rows(device, rows.count(), units.count,
              TurnRows<A, Rotates>{RowFinder(rows), RotationRows<A>(rotation, units.pairs()),
                                   direction, added, in, out, units});
}

/// Features of tokens, in panels.
template <class A>
struct FeatureRows {
  PanelRows rows;
  Index dim;
  const RotationTable<A>& rotation;
  A* features;  // [rows, dim]
  A* rotated;   // the same
  A* inputs;    // [rows, key_dim]: scratch of a row-wise map
};

/// features = scale phi(tensor) and, with a rotation, rotated = R features.
template <bool Rotates, class Map, class T, class A>
void pack_features(const CudaDevice& device, const Map& map, A scale,
                   const TensorView<const T, 4>& tensor, const FeatureRows<A>& to) {
  const auto& [rows, dim, rotation, features, rotated, inputs] = to;
  if constexpr (RowwiseFeatureMap<Map>) {
    gather(device, rows, tensor, inputs);
    launch(device, rows.count(),
           MapRows<Map, A>{map, scale, RowFinder(rows), inputs, tensor.extent[3], features, dim});
    if constexpr (Rotates)
      turn<true, A>(device, rows, rotation, Turn::forward, {}, dim, features, rotated);
  } else {
    const RowUnits<T, Rotates> units(
        dim, has_aligned_rows(tensor) && is_aligned(features) && is_aligned(rotated),
        rotation.layout);
    launch_rows(device, rows.count(), units.count,
                MapFeatures<Map, T, A, Rotates>{map, scale, RowFinder(rows),
                                                RotationRows<A>(rotation, units.pairs()), tensor,
                                                features, rotated, units});
  }
}

/// tensor (+)= scale phi'(x) (R^T gradient + weighted row), element by element
template <class Map, class T, class A, bool Rotates, bool Adds>
struct UnmapFeatures {
  Map map;
  A scale;
  RowFinder rows;
  RotationRows<A> rotation;
  WeightedRow<A> added;
  TensorView<const T, 4> x;
  const A* gradient;  // [rows, dim]
  TensorView<T, 4> tensor;
  RowUnits<T, Rotates> units;

  MHLA_DEVICE void operator()(std::uint32_t r, const RowShare& share) const {
    const auto row = rows[r];
    if (!row.present()) return;
    T* const to = row_after(tensor.data, row.offset_in(tensor));
    const T* const from = row_after(x.data, row.offset_in(x));
    const A* const features = units.row(gradient, r);
    const auto sum = added.of(r, units.dim);
    rotation.for_each(units, share, row.place, [&](const auto unit, const auto& turn) {
      A value[unit.count];
      A input[unit.count];
      unit.load(features, 1, value);
      turn(Turn::back, value);
      added.add(sum, unit, value);
      unit.load(from, x.stride[3], input);
      for (std::size_t i = 0; i < unit.count; ++i) value[i] *= scale * map.derivative(input[i]);
      update_unit<Adds>(unit, to, tensor.stride[3], value);
    });
  }
};

/// out = scale J(in)^T gradient, row by row.
template <class Map, class A>
struct UnmapRows {
  Map map;
  A scale;
  RowFinder rows;
  const A* inputs;  // [rows, key_dim]
  Index key_dim;
  const A* gradient;  // [rows, feature_dim]
  Index feature_dim;
  A* out;  // [rows, key_dim]

  MHLA_HOST_DEVICE void operator()(Index r) const {
    if (!rows[static_cast<std::uint32_t>(r)].present()) return;
    const Span<A> result{out + r * key_dim, key_dim};
    map.vjp(Span<const A>{inputs + r * key_dim, key_dim},
            Span<const A>{gradient + r * feature_dim, feature_dim}, result);
    for (Index c = 0; c < key_dim; ++c) result[c] *= scale;
  }
};

}  // namespace cuda

MHLA_NAMESPACE_END
