// SPDX-License-Identifier: MIT
// How lanes share rows of features, and of floats, which sums of products become on their way from
// warps to lanes. A row is processed in strips: a few adjacent elements, and as many half a row
// further, so that a rotation's pairs are in one strip, half-split or interleaved. Each half of a
// strip is one access to shared memory.
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/shared_layout.hpp>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/head_dims.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

template <int Dim>
struct Strips {
  static constexpr int half = strip_width(Dim);  // elements of each half
  static constexpr int size = 2 * half;
  static constexpr int count = Dim / size;  // of a row
  static constexpr int lanes = lanes_of_row(Dim);
  static constexpr int of_lane = (count + lanes - 1) / lanes;
  static_assert(Dim % size == 0);

  using Elements = float[std::size_t{size}];

  /// The column of a strip's element e.
  MHLA_HOST_DEVICE static constexpr int column(int n, int e = 0) {
    return n * half + e % half + e / half * (Dim / 2);
  }
  /// The row of a thread, among those that all threads process at once. A warp's rows are `apart`,
  /// so that the lanes that are served at once read different banks.
  static constexpr int rows_of_warp = 32 / lanes;
  static constexpr int apart = lanes * half * 2 < 128 ? lanes * half / 8 : 1;
  MHLA_HOST_DEVICE static constexpr int row(int thread) {
    const int warp = thread / 32;
    return warp / apart * (rows_of_warp * apart) + warp % apart + thread % 32 / lanes * apart;
  }
  static_assert(has_no_bank_conflicts<2 * half>([](int lane) {
                  return row(lane) * tile_stride(Dim) + column(lane % lanes, 0) * 2;
                }),
                "lanes would share banks");
  /// Whether it writes what the lanes of a row share.
  MHLA_DEVICE static bool leads(const Block& block) { return block.lane() % lanes == 0; }

  /// The sum over the lanes of a row. The warp meets.
  MHLA_DEVICE static float sum_of_row(float value) {
    for (int mask = 1; mask < lanes; mask *= 2) value += machine::exchange(value, mask);
    return value;
  }
  /// Calls f(n, i) for this lane's strips of a row, the i-th one n.
  template <class F>
  MHLA_DEVICE static void for_each(const Block& block, const F& f) {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < of_lane; ++i) {
      const int n = i * lanes + block.lane() % lanes;
      if (count % lanes == 0 || n < count) f(n, i);
    }
  }
  template <int Threads, int Rows>
  static constexpr int rows_of_thread = Rows* lanes / Threads;
  /// Calls f(n, row) for each of Rows rows, by the lanes that share it, whose n-th it is.
  template <int Threads, int Rows, class F>
  MHLA_DEVICE static void for_each_row(const Block& block, const F& f) {
    static_assert(Threads / 32 % apart == 0 && Rows % (Threads / lanes) == 0);
    MHLA_DEVICE_UNROLL
    for (int n = 0; n < rows_of_thread<Threads, Rows>; ++n)
      f(n, n * (Threads / lanes) + row(block.thread));
  }
};

/// Adjacent elements that are accessed together.
template <class U, int Count>
struct alignas(Count * sizeof(U)) Vector {
  U element[std::size_t{Count}];
};

/// Reads strip n of a row of 16-bit elements.
template <class T, int Rows, int Dim>
MHLA_DEVICE void read_strip(const Tile<Rows, Dim>& tile, int row, int n,
                            typename Strips<Dim>::Elements& out) {
  using S = Strips<Dim>;
  MHLA_DEVICE_UNROLL
  for (int e = 0; e < S::size; e += S::half) {
    const auto words =
        machine::read<Vector<std::uint32_t, S::half / 2>>(tile.at(row, S::column(n, e)));
    MHLA_DEVICE_UNROLL
    for (int w = 0; w < S::half / 2; ++w) {
      out[e + 2 * w] = machine::first_of<T>(words.element[w]);
      out[e + 2 * w + 1] = machine::second_of<T>(words.element[w]);
    }
  }
}
/// Rounds and writes it; `elements` becomes what was written.
template <class T, int Rows, int Dim>
MHLA_DEVICE void write_strip(const Tile<Rows, Dim>& tile, int row, int n,
                             typename Strips<Dim>::Elements& elements) {
  using S = Strips<Dim>;
  MHLA_DEVICE_UNROLL
  for (int e = 0; e < S::size; e += S::half) {
    Vector<std::uint32_t, S::half / 2> words;
    MHLA_DEVICE_UNROLL
    for (int w = 0; w < S::half / 2; ++w) {
      words.element[w] = machine::rounded_pair<T>(elements[e + 2 * w], elements[e + 2 * w + 1]);
      elements[e + 2 * w] = machine::first_of<T>(words.element[w]);
      elements[e + 2 * w + 1] = machine::second_of<T>(words.element[w]);
    }
    machine::write(tile.at(row, S::column(n, e)), words);
  }
}
/// Reads strip n of Dim floats in shared memory.
template <int Dim>
MHLA_DEVICE void read_strip(Shared from, int n, typename Strips<Dim>::Elements& out) {
  using S = Strips<Dim>;
  MHLA_DEVICE_UNROLL
  for (int e = 0; e < S::size; e += 4) {
    const auto four =
        machine::read<Vector<float, 4>>(from + static_cast<Shared>(S::column(n, e) * 4));
    MHLA_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) out[e + x] = four.element[x];
  }
}

/// A matrix of floats in shared memory, read and written in pairs: rows are 8 banks apart.
template <int Rows, int Cols>
struct FloatTile {
  static constexpr int rows = Rows;
  static constexpr int stride = float_tile_stride(Cols);  // bytes
  static constexpr int bytes = float_tile_bytes(Rows, Cols);

  static_assert(bytes % 16 == 0, "what follows would not be aligned for copies");
  static_assert(has_no_bank_conflicts<8>([](int lane) { return lane / 4 * stride + lane % 4 * 8; }),
                "pairs of accumulators would share banks");

  struct alignas(8) Pair {
    float first;
    float second;
  };
  Shared begin;

  MHLA_DEVICE Shared at(int row, int col) const {
    return begin + static_cast<Shared>(row * stride + col * 4);
  }
  MHLA_DEVICE void write_pair(int row, int col, float first, float second) const {
    machine::write(at(row, col), Pair{first, second});
  }
  /// Writes sums of products.
  template <class Sum>
  MHLA_DEVICE void write(const Block& block, Sum& sum) const {
    sum.for_each_pair(block, [&](int row, int col, float first, float second) {
      write_pair(row, col, first, second);
    });
  }
  /// Strip n of a row.
  MHLA_DEVICE void read_strip(int row, int n, typename Strips<Cols>::Elements& out) const {
    fused::read_strip<Cols>(at(row, 0), n, out);
  }
  MHLA_DEVICE void write_strip(int row, int n,
                               const typename Strips<Cols>::Elements& elements) const {
    for (int e = 0; e < Strips<Cols>::size; e += 2)
      write_pair(row, Strips<Cols>::column(n, e), elements[e], elements[e + 1]);
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
