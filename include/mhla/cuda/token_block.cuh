// SPDX-License-Identifier: MIT
// Tokens to panels and back. Panels hold the rows of all blocks consecutively, [batch, kv_heads,
// blocks, query heads of the kv head, block tokens, dim]; a gather copies q, k, v and dy there,
// applying phi and the rotation, and the adjoints copy gradients back. Rows of absent tokens are
// zero.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/chip/launch.cuh>
#include <mhla/cuda/chip/row_units.cuh>
#include <mhla/cuda/gemm.cuh>
#include <mhla/cuda/rotation_table.hpp>
#include <mhla/policy/feature_map.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// 1 / den of a row, as two factors of which neither overflows; without denominators 1.
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
    A* const to = panel + r * tensor.extent[3];
    const Inverse<A> inverse(denominators, r);
    const T* const from = inverse.exists ? rows[r].in(tensor) : nullptr;
    if (from == nullptr) return units.template clear<A>(share, to, 1);
    units.for_each(share, [&](const auto unit) {
      A value[unit.count];
      unit.load(from, tensor.stride[3], value);
      if (denominators != nullptr) inverse.multiply(value);
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

/// tensor (+)= panel / den, likewise.
template <class T, class A>
struct Scatter {
  RowFinder rows;
  const A* panel;
  const A* denominators;
  TensorView<T, 4> tensor;
  Update update;
  RowUnits<T, false> units;

  MHLA_DEVICE void operator()(std::uint32_t r, const RowShare& share) const {
    const A* const from = panel + r * tensor.extent[3];
    T* const to = rows[r].in(tensor);
    if (to == nullptr) return;
    const Inverse<A> inverse(denominators, r);
    if (!inverse.exists) {
      if (update == Update::overwrite) units.template clear<A>(share, to, tensor.stride[3]);
      return;
    }
    units.for_each(share, [&](const auto unit) {
      A value[unit.count];
      unit.load(from, 1, value);
      if (denominators != nullptr) inverse.multiply(value);
      update_unit(unit, to, tensor.stride[3], value, update);
    });
  }
};
template <class T, class A>
void scatter(const CudaDevice& device, const PanelRows& rows, const A* panel,
             const TensorView<T, 4>& tensor, Update update, const A* denominators = nullptr) {
  const RowUnits<T, false> units(tensor.extent[3], has_aligned_rows(tensor) && is_aligned(panel));
  launch_rows(device, rows.count(), units.count,
              Scatter<T, A>{RowFinder(rows), panel, denominators, tensor, update, units});
}

/// Zeros the tokens that a mask removes, which are in no panel; without a mask, all.
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
    if (mask.data != nullptr && mask(r, t) != 0) return;
    units.template clear<Accumulator<T>>(share, &tensor(r, h, t, 0), tensor.stride[3]);
  }
};
template <class T>
void clear_rows(const CudaDevice& device, const TensorView<const std::uint8_t, 2>& mask,
                const TensorView<T, 4>& tensor) {
  const auto& extent = tensor.extent;
  const RowUnits<T, false> units(extent[3], has_aligned_rows(tensor));
  launch_rows(device, extent[0] * extent[1] * extent[2], units.count,
              ClearMasked<T>{Divisor(extent[2]), Divisor(extent[1]), mask, tensor, units});
}
/// Zeros the gradient of a call without an output.
template <class T>
void clear(const CudaDevice& device, const GradientView<T, 4>& gradient) {
  if (gradient.wanted) clear_rows(device, {}, gradient.view);
}
template <class T>
void clear(const CudaDevice& device, const GradientView<T, 3>& gradient) {
  const auto& [data, extent, stride] = gradient.view;
  if (gradient.wanted)
    clear_rows<T>(
        device, {},
        {data, {1, extent[0], extent[1], extent[2]}, {0, stride[0], stride[1], stride[2]}});
}
template <class T>
void clear_masked(const CudaDevice& device, const TensorView<const std::uint8_t, 2>& mask,
                  const TensorView<T, 4>& tensor) {
  if (mask.data != nullptr) clear_rows(device, mask, tensor);
}

/// Rotates the pairs of a unit: out = R value, or R^T value.
template <class A, class Unit>
MHLA_DEVICE void turn_unit(const RotationRows<A>& rotation,
                           const typename RotationRows<A>::Row& of_token, const Unit& unit,
                           Turn turn, A (&value)[Unit::count]) {
  // Cosine and sine of each pair.
  A angles[Unit::count];
  const auto load = [&](int axis, A(&to)[Unit::count]) {
    const auto* const from = reinterpret_cast<const A*>(of_token.axis[axis] + unit.pair);
    if constexpr (Unit::count == 2) {
      to[0] = from[0];
      to[1] = from[1];
    } else {
      load_vectors<int{Unit::count}>(from, to);
    }
  };
  load(2, angles);
  MHLA_DEVICE_UNROLL
  for (int axis = 1; axis >= 0; --axis)
    if (axis >= rotation.first_axis) {
      A more[Unit::count];
      load(axis, more);
      for (std::size_t i = 0; i < Unit::count; ++i) angles[i] += more[i];
    }
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
    const T* const from = row.in(tensor);
    const Index at = r * tensor.extent[3];
    if (from == nullptr) {
      units.template clear<A>(share, features + at, 1);
      if constexpr (Rotates) units.template clear<A>(share, rotated + at, 1);
      return;
    }
    const auto angles = rotation.row(row.place);
    units.for_each(share, [&](const auto unit) {
      A value[unit.count];
      unit.load(from, tensor.stride[3], value);
      for (A& x : value) x = scale * map.value(x);
      unit.store(features + at, 1, value);
      if constexpr (Rotates) {
        turn_unit(rotation, angles, unit, Turn::forward, value);
        unit.store(rotated + at, 1, value);
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

/// out = R in, or R^T in; `out` may be `in`.
template <class A>
struct TurnRows {
  RowFinder rows;
  RotationRows<A> rotation;
  Index feature_dim;
  const A* in;
  A* out;
  Turn turn;
  RowUnits<A, true> units;

  MHLA_DEVICE void operator()(std::uint32_t r, const RowShare& share) const {
    const auto angles = rotation.row(rows[r].place);
    const Index at = r * feature_dim;
    units.for_each(share, [&](const auto unit) {
      A value[unit.count];
      unit.load(in + at, 1, value);
      turn_unit(rotation, angles, unit, turn, value);
      unit.store(out + at, 1, value);
    });
  }
};
template <class A>
void turn(const CudaDevice& device, const PanelRows& rows, const RotationTable<A>& rotation,
          Index feature_dim, const A* in, A* out, Turn turn) {
  const RowUnits<A, true> units(feature_dim, is_aligned(in) && is_aligned(out), rotation.layout);
  launch_rows(
      device, rows.count(), units.count,
      TurnRows<A>{RowFinder(rows), RotationRows<A>(rotation), feature_dim, in, out, turn, units});
}

/// Buffers of a row-wise map: its input, and the gradient in it.
template <class A>
struct RowBuffers {
  Span<A> input;     // [rows, key_dim]
  Span<A> gradient;  // [rows, key_dim]
};

/// features = scale phi(tensor) and, with a rotation, rotated = R features.
template <bool Rotates, class Map, class T, class A>
void pack_features(const CudaDevice& device, const Map& map, A scale, const PanelRows& rows,
                   const RotationTable<A>& rotation, const TensorView<const T, 4>& tensor,
                   Index feature_dim, A* features, A* rotated, const RowBuffers<A>& buffers) {
  if constexpr (RowwiseFeatureMap<Map>) {
    gather(device, rows, tensor, buffers.input.data);
    launch(device, rows.count(),
           MapRows<Map, A>{map, scale, RowFinder(rows), buffers.input.data, tensor.extent[3],
                           features, feature_dim});
    if constexpr (Rotates)
      turn(device, rows, rotation, feature_dim, features, rotated, Turn::forward);
  } else {
    const RowUnits<T, Rotates> units(
        feature_dim, has_aligned_rows(tensor) && is_aligned(features) && is_aligned(rotated),
        rotation.layout);
    launch_rows(
        device, rows.count(), units.count,
        MapFeatures<Map, T, A, Rotates>{map, scale, RowFinder(rows), RotationRows<A>(rotation),
                                        tensor, features, rotated, units});
  }
}

/// A row for each panel of rows, to be added to them by weights.
template <class A>
struct WeightedRow {
  Divisor rows_of_panel;
  const A* weights = nullptr;  // [panels, rows]; null: all 1
  const A* sums = nullptr;     // [panels, dim]; null: nothing is added

  /// That of row r.
  MHLA_HOST_DEVICE const A* of(std::uint32_t r, Index dim) const {
    return sums == nullptr ? nullptr : sums + rows_of_panel.quotient(r) * dim;
  }
  MHLA_HOST_DEVICE A weight(std::uint32_t r) const {
    return weights == nullptr ? A(1) : weights[r];
  }
};

/// rows += sum of their panel, weighted: dK += dz_b, or dQ += c z~.
template <class A>
struct AddWeightedRow {
  WeightedRow<A> added;
  A* panel;
  Index dim;
  RowUnits<A, false> units;

  MHLA_DEVICE void operator()(std::uint32_t r, const RowShare& share) const {
    A* const row = panel + r * dim;
    const A* const sums = added.of(r, dim);
    const A weight = added.weight(r);
    units.for_each(share, [&](const auto unit) {
      A value[unit.count];
      A sum[unit.count];
      unit.load(row, 1, value);
      unit.load(sums, 1, sum);
      for (std::size_t i = 0; i < unit.count; ++i) value[i] += weight * sum[i];
      unit.store(row, 1, value);
    });
  }
};
template <class A>
void add_weighted_row(const CudaDevice& device, Index rows, Index dim, A* panel,
                      const WeightedRow<A>& added) {
  if (added.sums == nullptr) return;
  const RowUnits<A, false> units(dim, is_aligned(panel) && is_aligned(added.sums));
  launch_rows(device, rows, units.count, AddWeightedRow<A>{added, panel, dim, units});
}

/// tensor (+)= scale phi'(x) (R^T gradient + weighted row), element by element
template <class Map, class T, class A, bool Rotates>
struct UnmapFeatures {
  Map map;
  A scale;
  RowFinder rows;
  RotationRows<A> rotation;
  WeightedRow<A> added;
  TensorView<const T, 4> x;
  const A* gradient;  // [rows, dim]
  TensorView<T, 4> tensor;
  Update update;
  RowUnits<T, Rotates> units;

  MHLA_DEVICE void operator()(std::uint32_t r, const RowShare& share) const {
    const auto row = rows[r];
    T* const to = row.in(tensor);
    if (to == nullptr) return;
    const T* const from = row.in(x);
    const auto angles = rotation.row(row.place);
    const A* const features = gradient + r * tensor.extent[3];
    const A* const sums = added.of(r, tensor.extent[3]);
    const A weight = added.weight(r);
    units.for_each(share, [&](const auto unit) {
      A value[unit.count];
      A other[unit.count];
      unit.load(features, 1, value);
      if constexpr (Rotates) turn_unit(rotation, angles, unit, Turn::back, value);
      if (sums != nullptr) {
        unit.load(sums, 1, other);
        for (std::size_t i = 0; i < unit.count; ++i) value[i] += weight * other[i];
      }
      unit.load(from, x.stride[3], other);
      for (std::size_t i = 0; i < unit.count; ++i) value[i] *= scale * map.derivative(other[i]);
      update_unit(unit, to, tensor.stride[3], value, update);
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

/// What a gradient of features goes through on its way to q or k: it is rotated back if they are
/// rotated, and a row is added, for the denominators. Either may have been done before.
template <class A>
struct FeatureGradientRows {
  PanelRows rows;
  A* gradient;
  Index feature_dim;
  const RotationTable<A>& rotation;
  WeightedRow<A> added;

  /// Does that, in place.
  template <bool Rotates>
  void finish(const CudaDevice& device) const {
    if constexpr (Rotates)
      turn(device, rows, rotation, feature_dim, gradient, gradient, Turn::back);
    add_weighted_row(device, rows.count(), feature_dim, gradient, added);
  }
};

/// tensor (+)= scale J(x)^T (R^T gradient + weighted row): the adjoint of pack_features.
template <bool Rotates, class Map, class T, class A>
void unpack_feature_gradient(const CudaDevice& device, const Map& map, A scale,
                             const FeatureGradientRows<A>& of, const TensorView<const T, 4>& x,
                             const TensorView<T, 4>& tensor, Update update,
                             const RowBuffers<A>& buffers) {
  const PanelRows& rows = of.rows;
  if constexpr (RowwiseFeatureMap<Map>) {
    of.template finish<Rotates>(device);
    gather(device, rows, x, buffers.input.data);
    launch(device, rows.count(),
           UnmapRows<Map, A>{map, scale, RowFinder(rows), buffers.input.data, x.extent[3],
                             of.gradient, of.feature_dim, buffers.gradient.data});
    scatter<T, A>(device, rows, buffers.gradient.data, tensor, update);
  } else {
    const RowUnits<T, Rotates> units(of.feature_dim,
                                     has_aligned_rows(x) && has_aligned_rows(tensor) &&
                                         is_aligned(of.gradient) && is_aligned(of.added.sums),
                                     of.rotation.layout);
    launch_rows(
        device, rows.count(), units.count,
        UnmapFeatures<Map, T, A, Rotates>{map, scale, RowFinder(rows), RotationRows<A>(of.rotation),
                                          of.added, x, of.gradient, tensor, update, units});
  }
}

}  // namespace cuda

MHLA_NAMESPACE_END
