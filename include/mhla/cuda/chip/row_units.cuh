// SPDX-License-Identifier: MIT
// How the threads of launch_rows() read and write rows of tensors and panels: by vectors of 16
// bytes of the tensor where everything is aligned, else element by element. Where the pairs of a
// rotation have to meet in a thread, it takes two of either, unless pairs are neighbours in a
// vector.
#pragma once

#include <mhla/cuda/chip/launch.cuh>
#include <mhla/cuda/chip/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

template <class T>
inline constexpr int vector_size = 16 / int{sizeof(T)};

/// An address in bytes after another.
template <class U>
MHLA_DEVICE U* after(U* address, Index bytes) {
  using Byte = std::conditional_t<std::is_const_v<U>, const char, char>;
  return reinterpret_cast<U*>(reinterpret_cast<Byte*>(address) + bytes);
}
/// The row that begins so many elements after another: found once for all its vectors.
template <class U>
MHLA_DEVICE U* row_after(U* row, Index elements) {
  return after(row, machine::found(elements * Index{sizeof(U)}));
}

/// Loads Count elements by vectors.
template <int Count, class T, class A>
MHLA_DEVICE void load_vectors(const T* from, A* to) {
  if constexpr (std::is_same_v<T, A>) {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < Count; i += vector_size<A>) load_chunk(to + i, from + i);
  } else {
    static_assert(sizeof(T) == 2 && Count == 8);
    std::uint32_t pair[4];
    load_chunk(pair, from);
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = machine::first_of<T>(pair[i]);
      to[2 * i + 1] = machine::second_of<T>(pair[i]);
    }
  }
}
/// Stores them, rounded to T.
template <int Count, class T, class A>
MHLA_DEVICE void store_vectors(T* to, const A* from) {
  if constexpr (std::is_same_v<T, A>) {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < Count; i += vector_size<A>) store_chunk(to + i, from + i);
  } else {
    static_assert(sizeof(T) == 2 && Count == 8);
    std::uint32_t pair[4];
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) pair[i] = machine::rounded_pair<T>(from[2 * i], from[2 * i + 1]);
    store_chunk(to, pair);
  }
}

/// What a thread handles at once of a row: one or two runs of adjacent elements, a vector or one.
template <int Runs, int Size>
struct RowUnit {
  static constexpr std::size_t count = std::size_t{Runs} * std::size_t{Size};
  Index first;
  int gap;             // from run to run
  std::uint32_t pair;  // the first of a rotation's

  /// The first element of a run.
  template <class T>
  MHLA_DEVICE T* of_run(T* row, int run) const {
    return run == 0 ? row + first : after(row + first, machine::wide_product(gap, sizeof(T)));
  }
  /// Where the elements of its p-th pair are.
  MHLA_HOST_DEVICE static constexpr int first_of(int p) { return Runs == 2 ? p : 2 * p; }
  MHLA_HOST_DEVICE static constexpr int second_of(int p) {
    return Runs == 2 ? Size + p : 2 * p + 1;
  }

  /// `step` lies between elements: 1 if they are in vectors.
  template <class T, class A>
  MHLA_DEVICE void load(const T* row, Index step, A (&value)[count]) const {
    MHLA_DEVICE_UNROLL
    for (int run = 0; run < Runs; ++run)
      if constexpr (Size == 1) {
        value[run] = static_cast<A>(mhla::load(row[(first + run * gap) * step]));
      } else {
        load_vectors<Size>(of_run(row, run), value + run * Size);
      }
  }
  template <class T, class A>
  MHLA_DEVICE void store(T* row, Index step, const A (&value)[count]) const {
    MHLA_DEVICE_UNROLL
    for (int run = 0; run < Runs; ++run)
      if constexpr (Size == 1) {
        mhla::store(row[(first + run * gap) * step], value[run]);
      } else {
        store_vectors<Size>(of_run(row, run), value + run * Size);
      }
  }
};

/// How rows are cut into units; with a rotation's pairs if `Pairs`.
template <class T, bool Pairs>
struct RowUnits {
  static constexpr bool has_pairs = Pairs;
  int dim;              // elements of a row
  std::uint32_t count;  // units of a row
  bool vectors;
  std::uint32_t step;  // from pair to pair
  int gap;             // between the elements of a pair

  RowUnits(Index of_row, bool aligned, const RotationPairs& layout = {})
      : dim(static_cast<int>(of_row)),
        step(static_cast<std::uint32_t>(layout.step)),
        gap(static_cast<int>(layout.gap)) {
    const Index run = Pairs && layout.gap != 1 ? of_row / 2 : of_row;
    vectors = aligned && run % vector_size<T> == 0;
    count = static_cast<std::uint32_t>(vectors ? run / vector_size<T>
                                       : Pairs ? of_row / 2
                                               : of_row);
  }

  /// Pairs of a unit.
  Index pairs() const { return !vectors ? 1 : gap == 1 ? vector_size<T> / 2 : vector_size<T>; }
  /// Row r of a panel of contiguous rows.
  template <class A>
  MHLA_DEVICE A* row(A* panel, std::uint32_t r) const {
    return row_after(panel, Index{r} * dim);
  }
  /// Zeros those of a share; A is what the row's elements are computed in.
  template <class A, class U>
  MHLA_DEVICE void set_zero(const RowShare& share, U* row, Index row_step) const {
    for_each(share, [&](const auto unit) {
      const A zeros[unit.count] = {};
      unit.store(row, row_step, zeros);
    });
  }
  /// Calls f(unit) for those of a share.
  template <class F>
  MHLA_DEVICE void for_each(const RowShare& share, const F& f) const {
    constexpr int size = vector_size<T>;
    const auto visit = [&](const auto& unit_of) {
      for (std::uint32_t n = share.first; n < count; n += share.step) f(unit_of(n));
    };
    if constexpr (!Pairs) {
      if (vectors)
        visit([&](std::uint32_t n) { return RowUnit<1, size>{Index{n} * size, 0, 0}; });
      else
        visit([](std::uint32_t n) { return RowUnit<1, 1>{n, 0, 0}; });
    } else if (!vectors) {
      visit([&](std::uint32_t n) { return RowUnit<2, 1>{Index{n} * step, gap, n}; });
    } else if (gap == 1) {
      visit([&](std::uint32_t n) { return RowUnit<1, size>{Index{n} * size, 0, n * (size / 2)}; });
    } else {
      visit([&](std::uint32_t n) { return RowUnit<2, size>{Index{n} * size, gap, n * size}; });
    }
  }
};

/// row (+)= value
template <bool Adds, class Unit, class T, class A>
MHLA_DEVICE void update_unit(const Unit& unit, T* row, Index step, A (&value)[Unit::count]) {
  if constexpr (Adds) {
    A before[Unit::count];
    unit.load(row, step, before);
    MHLA_DEVICE_UNROLL
    for (std::size_t i = 0; i < Unit::count; ++i) value[i] += before[i];
  }
  unit.store(row, step, value);
}

inline bool is_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}
/// Whether every row is contiguous and starts at a multiple of 16 bytes.
template <class T>
bool has_aligned_rows(const TensorView<T, 4>& tensor) {
  bool aligned = is_aligned(tensor.data) && tensor.stride[3] == 1;
  for (int axis = 0; axis < 3; ++axis)
    aligned = aligned && (tensor.extent[axis] <= 1 || tensor.stride[axis] % vector_size<T> == 0);
  return aligned;
}

/// <a, b>, summed in order.
template <class A>
MHLA_DEVICE A inner_product(Index count, const A* a, const A* b) {
  constexpr int size = vector_size<A>;
  A sum = A(0);
  Index c = 0;
  if (((reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b)) & 15) == 0)
    for (; c + size <= count; c += size) {
      A x[std::size_t{size}];
      A y[std::size_t{size}];
      load_chunk(x, a + c);
      load_chunk(y, b + c);
      MHLA_DEVICE_UNROLL
      for (int i = 0; i < size; ++i) sum += x[i] * y[i];
    }
  for (; c < count; ++c) sum += a[c] * b[c];
  return sum;
}

}  // namespace cuda

MHLA_NAMESPACE_END
