// SPDX-License-Identifier: MIT
// Do two strided views share a byte? Interleaved buffers (packed qkv) do not, so comparing address
// ranges would reject valid calls.
#pragma once

#include <mhla/core/tensor_view.hpp>

MHLA_NAMESPACE_BEGIN

namespace overlap {

// An integer combination sum_k stride_k x_k, low_k <= x_k <= high_k, of distinct positive strides.
struct Lattice {
  struct Axis {
    Index stride, low, high;
  };
  static constexpr int max_axes = 12;
  Axis axis[max_axes];
  int axes = 0;

  MHLA_ONCE_A_CALL constexpr void add(Index stride, Index low, Index high) {
    if (stride == 0 || (low == 0 && high == 0)) return;
    if (stride < 0) {
      stride = -stride;
      const Index flipped = -low;
      low = -high;
      high = flipped;
    }
    int at = 0;  // kept in order of decreasing stride; equal strides merge
    while (at < axes && axis[at].stride > stride) ++at;
    if (at < axes && axis[at].stride == stride) {
      axis[at].low += low;
      axis[at].high += high;
      return;
    }
    for (int i = axes; i > at; --i) axis[i] = axis[i - 1];
    axis[at] = {stride, low, high};
    ++axes;
  }

  // Whether the combination can be `target`, axes [first, axes) alone. Where strides nest, each
  // level leaves one or two candidates and the search is exact; it gives up and answers "yes" after
  // `budget` candidates. (Out of line: compilers would unroll the recursion several levels deep.)
  MHLA_ONCE_A_CALL constexpr bool reaches(Index target, int first, int& budget) const {
    if (first == axes) return target == 0;
    Index rest_low = 0;
    Index rest_high = 0;
    for (int i = first + 1; i < axes; ++i) {
      rest_low += axis[i].stride * axis[i].low;
      rest_high += axis[i].stride * axis[i].high;
    }
    const Axis& a = axis[first];
    Index from = ceil_quotient(target - rest_high, a.stride);
    Index to = -ceil_quotient(rest_low - target, a.stride);
    if (from < a.low) from = a.low;
    if (to > a.high) to = a.high;
    for (Index x = from; x <= to; ++x) {
      if (--budget < 0) return true;
      if (reaches(target - x * a.stride, first + 1, budget)) return true;
    }
    return false;
  }

  static constexpr Index ceil_quotient(Index a, Index b) {
    return a / b + ((a % b != 0 && a > 0) ? 1 : 0);
  }
};

// A view without its types, so that the searches are compiled once for all of them.
struct Strided {
  const void* data;
  Index element_bytes;
  Index size;
  int rank;
  Index extent[4];
  Index stride[4];
};

template <class T, int Rank>
constexpr Strided strided(const TensorView<T, Rank>& view) {
  Strided all{view.data, static_cast<Index>(sizeof(T)), view.size(), Rank, {}, {}};
  for (int i = 0; i < Rank; ++i) {
    all.extent[i] = view.extent[i];
    all.stride[i] = view.stride[i];
  }
  return all;
}

// Bytes [low, high) from a view's address on, which hold all its elements.
struct Reach {
  Index low = 0;
  Index high;

  constexpr explicit Reach(const Strided& view) : high(view.element_bytes) {
    for (int i = 0; i < view.rank; ++i) {
      const Index last = view.stride[i] * (view.extent[i] - 1) * view.element_bytes;
      (last < 0 ? low : high) += last;
    }
  }
};

MHLA_ONCE_A_CALL inline bool share_memory(const Strided& a, const Strided& b) {
  if (a.data == nullptr || b.data == nullptr || a.size == 0 || b.size == 0) return false;
  const auto distance = static_cast<Index>(reinterpret_cast<std::uintptr_t>(b.data) -
                                           reinterpret_cast<std::uintptr_t>(a.data));
  const Reach of_a(a);
  const Reach of_b(b);
  if (distance + of_b.low >= of_a.high || distance + of_b.high <= of_a.low) return false;
  Lattice lattice;
  for (int i = 0; i < a.rank; ++i) lattice.add(a.stride[i] * a.element_bytes, 0, a.extent[i] - 1);
  for (int i = 0; i < b.rank; ++i) lattice.add(b.stride[i] * b.element_bytes, 1 - b.extent[i], 0);
  lattice.add(1, 1 - b.element_bytes, a.element_bytes - 1);  // the bytes of one element
  int budget = 4096;
  return lattice.reaches(distance, 0, budget);
}

MHLA_ONCE_A_CALL constexpr bool is_injective(const Strided& view) {
  if (view.size == 0) return true;
  Lattice lattice;
  for (int i = 0; i < view.rank; ++i) {
    if (view.extent[i] == 1) continue;
    if (view.stride[i] == 0) return false;
    const int before = lattice.axes;
    lattice.add(view.stride[i], 0, view.extent[i] - 1);
    if (lattice.axes == before) return false;  // two axes with the same stride
  }
  Index reach = 0;  // of the axes with smaller strides
  for (int i = lattice.axes - 1; i >= 0; --i) {
    if (lattice.axis[i].stride <= reach) return false;
    reach += lattice.axis[i].stride * (lattice.axis[i].high - lattice.axis[i].low);
  }
  return true;
}

}  // namespace overlap

/// Whether two views share a byte. Decided exactly for views whose strides nest (every layout made
/// by slicing, permuting or interleaving), "yes" if the search would be long.
template <class T, int RankT, class U, int RankU>
bool share_memory(const TensorView<T, RankT>& a, const TensorView<U, RankU>& b) {
  return overlap::share_memory(overlap::strided(a), overlap::strided(b));
}

/// Whether every index of the view is a distinct element, as a destination needs: "no" for a
/// broadcast axis (stride 0), and for strides that do not nest.
template <class T, int Rank>
constexpr bool is_injective(const TensorView<T, Rank>& view) {
  return overlap::is_injective(overlap::strided(view));
}

MHLA_NAMESPACE_END
