// SPDX-License-Identifier: MIT
// Products of 16 rows by one warp, whose first factor comes from registers: the sums of one product
// lie as the first factor of the next one needs them, so that two products in a row meet neither in
// shared memory nor at a barrier.
#pragma once

#include <mhla/cuda/chip/product.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// 16 rows of floats, of Cols columns, in a warp's registers. A thread has two rows: `half` 0
/// and 1.
template <int Cols>
struct WarpRows {
  static_assert(Cols % 8 == 0);
  static constexpr int cols = Cols;
  static constexpr int parts = Cols / 8;

  float value[std::size_t{parts}][4] = {};

  MHLA_DEVICE static int row(const Block& block, int half) { return block.lane() / 4 + half * 8; }
  /// Of the first of this thread's two elements in a part.
  MHLA_DEVICE static int column(const Block& block, int part) {
    return part * 8 + block.lane() % 4 * 2;
  }
  /// Calls f(part, e) for this thread's elements value[part][e].
  template <class F>
  MHLA_DEVICE static void for_each_element(const F& f) {
    MHLA_DEVICE_UNROLL
    for (int part = 0; part < parts; ++part) {
      MHLA_DEVICE_UNROLL
      for (int e = 0; e < 4; ++e) f(part, e);
    }
  }
  /// Calls f(half, col, first, second) for this thread's elements of the first N columns: those of
  /// columns col and col + 1.
  template <int N = Cols, class F>
  MHLA_DEVICE void for_each_pair(const Block& block, const F& f) {
    MHLA_DEVICE_UNROLL
    for (int part = 0; part < N / 8; ++part) {
      MHLA_DEVICE_UNROLL
      for (int half = 0; half < 2; ++half)
        f(half, column(block, part), value[part][2 * half], value[part][2 * half + 1]);
    }
  }
};

/// 16 rows of a tile, a first factor, read from shared memory for every product.
template <class TileA>
struct RowsInTile {
  static constexpr int K = TileA::cols;
  Shared begin;  // of what this lane reads
  Shared last;   // likewise, of the last eight columns, if they have no others beside them

  MHLA_DEVICE RowsInTile(const Block& block, const TileA& tile, int row)
      : begin(tile.at(row + block.lane() % 16, block.lane() / 16 * 8)),
        last(tile.at(row + block.lane() % 16, K - 8)) {}

  MHLA_DEVICE void read(int k, std::uint32_t (&a)[4]) const {
    machine::load_matrices(a, k + 16 <= K ? begin + static_cast<Shared>(k * 2) : last);
  }
};

/// 16 rows of K columns in registers, a first factor: rows of a tile, read once, or rounded sums.
template <int K>
struct RowsInRegisters {
  std::uint32_t part[std::size_t{(K + 15) / 16}][4];

  template <class TileA>
  MHLA_DEVICE void load(const RowsInTile<TileA>& rows) {
    MHLA_DEVICE_UNROLL
    for (int k = 0; k < K; k += 16) rows.read(k, part[k / 16]);
  }
  MHLA_DEVICE void read(int k, std::uint32_t (&a)[4]) const {
    for (int x = 0; x < 4; ++x) a[x] = part[k / 16][x];
  }
};

/// The product of a and the transpose of rows [row, row + Cols) of b, of K columns. The warp meets.
template <class T, int Cols, class A, class TileB>
MHLA_DEVICE WarpRows<Cols> product_with_rows(const Block& block, const A& a, const TileB& b,
                                             int row) {
  static_assert(Cols % 16 == 0);
  constexpr int K = TileB::cols;
  constexpr int parts = WarpRows<Cols>::parts;
  constexpr int together = parts < 4 ? parts : 4;  // in a load of eight columns
  const int lane = block.lane();
  const Shared begin = b.at(row + lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
  [[maybe_unused]] const Shared last = b.at(row + lane % (together * 8), K - 8);
  WarpRows<Cols> sum;
  MHLA_DEVICE_UNROLL
  for (int k = 0; k < K; k += 16) {
    std::uint32_t of_a[4];
    a.read(k, of_a);
    const bool is_whole = k + 16 <= K;
    MHLA_DEVICE_UNROLL
    for (int part = 0; part < parts; part += is_whole ? 2 : together) {
      std::uint32_t of_b[4];
      const auto rows = static_cast<Shared>(part * 8 * TileB::stride);
      machine::load_matrices(of_b,
                             is_whole ? begin + rows + static_cast<Shared>(k * 2) : last + rows);
      MHLA_DEVICE_UNROLL
      for (int next = 0; next < (is_whole ? 2 : together); ++next) {
        if (is_whole) {
          machine::multiply_add<T>(sum.value[part + next], of_a, of_b[2 * next],
                                   of_b[2 * next + 1]);
        } else {
          machine::multiply_add<T>(sum.value[part + next], of_a[0], of_a[1], of_b[next]);
        }
      }
    }
  }
  return sum;
}

/// Sums rounded to T, as a first factor; their rounding errors are left in their place.
template <class T, int Cols>
MHLA_DEVICE RowsInRegisters<Cols> rounded(WarpRows<Cols>& sum) {
  static_assert(Cols % 16 == 0);
  RowsInRegisters<Cols> a;
  MHLA_DEVICE_UNROLL
  for (int part = 0; part < WarpRows<Cols>::parts; ++part) {
    MHLA_DEVICE_UNROLL
    for (int half = 0; half < 2; ++half)
      a.part[part / 2][part % 2 * 2 + half] =
          split_off<T>(sum.value[part][2 * half], sum.value[part][2 * half + 1]);
  }
  return a;
}

/// sum += a and rows [row, row + K) of b multiplied, N columns. The warp meets.
template <class T, int N, int K, int Cols, class TileB>
MHLA_DEVICE void multiply_add_rows(const Block& block, WarpRows<Cols>& sum,
                                   const RowsInRegisters<K>& a, const TileB& b, int row) {
  static_assert(K % 16 == 0 && N % 8 == 0 && TileB::cols >= N && Cols >= N);
  constexpr int parts = N / 8;
  constexpr int together = K < 32 ? K : 32;  // rows in a load of eight columns
  const int lane = block.lane();
  const Shared begin = b.at(row + lane % 16, lane / 16 * 8);
  MHLA_DEVICE_UNROLL
  for (int k = 0; k < K; k += 16) {
    MHLA_DEVICE_UNROLL
    for (int part = 0; part + 1 < parts; part += 2) {
      std::uint32_t of_b[4];
      machine::load_matrices_transposed(of_b,
                                        begin + static_cast<Shared>(k * TileB::stride + part * 16));
      machine::multiply_add<T>(sum.value[part], a.part[k / 16], of_b[0], of_b[1]);
      machine::multiply_add<T>(sum.value[part + 1], a.part[k / 16], of_b[2], of_b[3]);
    }
  }
  if constexpr (parts % 2 == 1) {
    MHLA_DEVICE_UNROLL
    for (int k = 0; k < K; k += together) {
      std::uint32_t of_b[4];
      machine::load_matrices_transposed(of_b, b.at(row + k + lane % together, N - 8));
      MHLA_DEVICE_UNROLL
      for (int step = 0; step < together / 16; ++step)
        machine::multiply_add<T>(sum.value[parts - 1], a.part[k / 16 + step], of_b[2 * step],
                                 of_b[2 * step + 1]);
    }
  }
}

/// The product where b has infinities, and sums see those of its rows with sees(half, row).
template <class T, int N, int K, int Cols, class TileB, class Sees>
MHLA_DEVICE void multiply_add_seen_rows(const Block& block, WarpRows<Cols>& sum,
                                        const RowsInRegisters<K>& a, const TileB& b, int row,
                                        const Sees& sees) {
  const RowsInRegisters<K> kept = a;  // in memory, too
  multiply_add_seen<T, K>(
      block, sum.value, [&](int k, std::uint32_t(&of_a)[4]) { kept.read(k, of_a); }, b, row, 0,
      N / 8, sees);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
