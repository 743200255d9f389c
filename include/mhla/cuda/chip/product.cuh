// SPDX-License-Identifier: MIT
// Products of tiles by a block's warps, accumulated in registers in float.
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/tile.cuh>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// A matrix of M x N floats in the registers of WarpsM x WarpsN warps: warp w has, of its 16 x 8
/// parts, every WarpsM-th row of parts from w % WarpsM on, and the w / WarpsM-th stretch of their
/// columns.
template <int M, int N, int WarpsM, int WarpsN>
struct Accumulators {
  static_assert(M % 8 == 0 && N % 8 == 0);
  static constexpr int rows = M;
  static constexpr int warps = WarpsM * WarpsN;
  static constexpr int all_row_parts = (M + 15) / 16;
  static constexpr int all_col_parts = N / 8;
  static constexpr int row_parts = (all_row_parts + WarpsM - 1) / WarpsM;
  static constexpr int col_parts = (all_col_parts + WarpsN - 1) / WarpsN;
  static constexpr int registers = row_parts * col_parts * 4;  // of a thread

  float value[std::size_t{row_parts}][std::size_t{col_parts}][4] = {};

  MHLA_DEVICE static int row_part(const Block& block, int i) {
    return block.warp() % WarpsM + i * WarpsM;
  }
  MHLA_DEVICE static int col_part(const Block& block, int j) {
    return block.warp() / WarpsM * col_parts + j;
  }
  /// Whether a warp has its i-th row of parts, and its j-th column: no question where all have.
  MHLA_DEVICE static bool has_row_part(const Block& block, int i) {
    return all_row_parts % WarpsM == 0 || row_part(block, i) < all_row_parts;
  }
  MHLA_DEVICE static bool has_col_part(const Block& block, int j) {
    return all_col_parts % WarpsN == 0 || col_part(block, j) < all_col_parts;
  }

  MHLA_DEVICE void set_zero() {
    for (auto& row : value)
      for (auto& part : row)
        for (float& element : part) element = 0;
  }

  MHLA_DEVICE void scale(float factor) {
    for (auto& row : value)
      for (auto& part : row)
        for (float& element : part) element *= factor;
  }
  /// Multiplies element by element.
  MHLA_DEVICE void multiply(const Accumulators& by) {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < row_parts; ++i) {
      MHLA_DEVICE_UNROLL
      for (int j = 0; j < col_parts; ++j)
        for (int e = 0; e < 4; ++e) value[i][j][e] *= by.value[i][j][e];
    }
  }
  /// Calls f(row, each) for this thread's rows; each(g) calls g(element) for its elements of one.
  template <class F>
  MHLA_DEVICE void for_each_row(const Block& block, const F& f) {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < row_parts; ++i) {
      MHLA_DEVICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = row_part(block, i) * 16 + block.lane() / 4 + half * 8;
        if (!has_row_part(block, i) || (M % 16 != 0 && row >= M)) continue;
        f(row, [&](const auto& g) {
          for (auto& part : value[i]) {
            g(part[2 * half]);
            g(part[2 * half + 1]);
          }
        });
      }
    }
  }

  /// Calls f(row, col, first, second) for this thread's elements: those of columns col and col + 1.
  template <class F>
  MHLA_DEVICE void for_each_pair(const Block& block, const F& f) {
    for_each_pair_from(block, [&](int down, int right, float& first, float& second) {
      f(first_row(block) + down, first_col(block) + right, first, second);
    });
  }
  /// Where this thread has its first element.
  MHLA_DEVICE static int first_row(const Block& block) {
    return row_part(block, 0) * 16 + block.lane() / 4;
  }
  MHLA_DEVICE static int first_col(const Block& block) {
    return col_part(block, 0) * 8 + block.lane() % 4 * 2;
  }
  /// for_each_pair() by offsets from there on, which the compiler knows.
  template <class F>
  MHLA_DEVICE void for_each_pair_from(const Block& block, const F& f) {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < row_parts; ++i) {
      MHLA_DEVICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        // All lanes take one branch: parts have 8 rows or 16.
        const bool has_row = has_row_part(block, i) && row_part(block, i) * 16 + half * 8 < M;
        if (!has_row) continue;
        MHLA_DEVICE_UNROLL
        for (int j = 0; j < col_parts; ++j)
          if (has_col_part(block, j))
            f(i * WarpsM * 16 + half * 8, j * 8, value[i][j][2 * half], value[i][j][2 * half + 1]);
      }
    }
  }

  /// Calls f(row, col, present, pairs) for four parts of a row that this thread shares with three
  /// lanes: of the n-th part it has columns col + 8 n + lane() % 4 * 2 and the next. The first
  /// `present` are there. The warp meets at f.
  template <class F>
  MHLA_DEVICE void for_each_four_parts(const Block& block, const F& f) {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < row_parts; ++i) {
      MHLA_DEVICE_UNROLL
      for (int j = 0; j < col_parts; j += 4) {
        const int of_warp = col_parts - j < 4 ? col_parts - j : 4;
        const int left = all_col_parts - col_part(block, j);
        const int present = left < of_warp ? left : of_warp;
        MHLA_DEVICE_UNROLL
        for (int half = 0; half < 2; ++half) {
          // All lanes take one branch: parts have 8 rows or 16.
          const int first_row = row_part(block, i) * 16 + half * 8;
          if (present <= 0 || first_row >= M) continue;
          float pairs[4][2] = {};
          MHLA_DEVICE_UNROLL
          for (int n = 0; n < 4 && j + n < col_parts; ++n) {
            pairs[n][0] = value[i][j + n][2 * half];
            pairs[n][1] = value[i][j + n][2 * half + 1];
          }
          f(first_row + block.lane() / 4, col_part(block, j) * 8, present, pairs);
        }
      }
    }
  }
};

/// Rounds two values, and replaces them by their rounding errors.
template <class T>
MHLA_DEVICE std::uint32_t split_off(float& first, float& second) {
  const std::uint32_t pair = machine::rounded_pair<T>(first, second);
  first -= machine::first_of<T>(pair);
  second -= machine::second_of<T>(pair);
  return pair;
}

/// The warp meets.
MHLA_DEVICE float sum_of_warp(float value) {
  for (int mask = 1; mask < 32; mask *= 2) value += machine::exchange(value, mask);
  return value;
}

/// Transposes four words of each of the four lanes that share a row: lane t's n-th becomes lane
/// n's t-th. The warp meets.
MHLA_DEVICE void transpose_words(const Block& block, std::uint32_t (&word)[4]) {
  MHLA_DEVICE_UNROLL
  for (int mask = 1; mask < 4; mask *= 2) {
    const bool upper = (block.lane() & mask) != 0;
    MHLA_DEVICE_UNROLL
    for (int n = 0; n < 4; ++n) {
      if ((n & mask) != 0) continue;
      const std::uint32_t low = word[n];
      const std::uint32_t high = word[n + mask];
      const std::uint32_t other = machine::exchange(upper ? low : high, mask);
      word[n] = upper ? other : low;
      word[n + mask] = upper ? high : other;
    }
  }
}

/// A factor's orientation in its tile.
enum class Stored { not_transposed, transposed };

/// Addresses of a lane's rows in matrix loads of a factor: of parts of the outer extent, two
/// matrices or one wide, from inner index 0 on. Places outside of the tile, whose products are not
/// used, become the last inside; where there are none nothing is compared.
template <Stored stored, bool is_exact, class TileType>
MHLA_DEVICE Shared factor_row(const TileType& tile, int outer, int outer_lane, int inner_lane) {
  if constexpr (stored == Stored::not_transposed) {
    const int row = outer * 8 + outer_lane;
    return is_exact ? tile.begin + tile.chunk_offset(row, inner_lane) : tile.chunk(row, inner_lane);
  } else {
    const int chunk = outer + outer_lane;
    return is_exact ? tile.begin + tile.chunk_offset(inner_lane, chunk)
                    : tile.chunk(inner_lane, chunk);
  }
}
/// From there to inner index k.
template <Stored stored, class TileType>
MHLA_DEVICE constexpr Shared inner_offset(int k) {
  return stored == Stored::not_transposed ? TileType::chunk_offset(0, k / 8)
                                          : TileType::chunk_offset(k, 0);
}

/// Sums of the rows of a product's first factor, of which each warp has those of its parts.
template <class T, class Sum>
struct RowSums {
  float value[std::size_t{Sum::row_parts}][4] = {};

  /// Adds the 16 columns of part i.
  MHLA_DEVICE void operator()(int i, const std::uint32_t (&rows)[4]) {
    constexpr std::uint32_t ones = std::is_same_v<T, BFloat16> ? 0x3f803f80u : 0x3c003c00u;
    machine::multiply_add<T>(value[i], rows, ones, ones);
  }
  MHLA_DEVICE void set_zero() {
    for (auto& part : value)
      for (float& element : part) element = 0;
  }
  /// Calls f(row, sum) for every row, by one thread each.
  template <class F>
  MHLA_DEVICE void for_each(const Block& block, const F& f) const {
    if (Sum::col_part(block, 0) != 0 || block.lane() % 4 != 0) return;
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < Sum::row_parts; ++i) {
      MHLA_DEVICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = Sum::row_part(block, i) * 16 + block.lane() / 4 + half * 8;
        if (row < Sum::rows) f(row, value[i][2 * half]);
      }
    }
  }
};
/// Uses nothing of a factor.
struct NoUse {
  MHLA_DEVICE void operator()(int, const std::uint32_t (&)[4]) const {}
};

/// sum += a b, of inner extent K, a multiple of 8. use(i, rows) gets each part of a, 16 x 16, as
/// the i-th row of parts multiplies it; K is then a multiple of 16. The warps of the block meet.
template <class T, int K, Stored a_stored, Stored b_stored, int M, int N, int WarpsM, int WarpsN,
          class TileA, class TileB, class Use = const NoUse>
MHLA_DEVICE void multiply_add(const Block& block, Accumulators<M, N, WarpsM, WarpsN>& sum,
                              const TileA& a, const TileB& b, Use& use = NoUse()) {
  using Sum = Accumulators<M, N, WarpsM, WarpsN>;
  constexpr bool a_as_stored = a_stored == Stored::not_transposed;
  constexpr bool b_as_stored = b_stored == Stored::not_transposed;
  static_assert(K % (std::is_same_v<Use, const NoUse> ? 8 : 16) == 0);
  static_assert(a_as_stored ? TileA::rows >= M && TileA::cols >= K
                            : TileA::rows >= K && TileA::cols >= M);
  static_assert(b_as_stored ? TileB::rows >= K && TileB::cols >= N
                            : TileB::rows >= N && TileB::cols >= K);
  constexpr bool a_exact = M % 16 == 0 && Sum::all_row_parts % WarpsM == 0;
  constexpr bool b_exact = Sum::col_parts % 2 == 0 && Sum::all_col_parts % WarpsN == 0;
  const int lane = block.lane();
  const int in_eight = lane % 8;
  const int second = lane / 8 % 2;  // of a pair of matrices
  const int upper = lane / 16;      // pair

  Shared of_a[std::size_t{Sum::row_parts}];
  MHLA_DEVICE_UNROLL
  for (int i = 0; i < Sum::row_parts; ++i) {
    const int part = Sum::row_part(block, i) * 2;
    of_a[i] = a_as_stored
                  ? factor_row<Stored::not_transposed, a_exact>(a, part, second * 8 + in_eight, 0)
                  : factor_row<Stored::transposed, a_exact>(a, part, second, upper * 8 + in_eight);
  }
  constexpr int pairs = (Sum::col_parts + 1) / 2;  // of parts, one load each
  Shared of_b[std::size_t{pairs}];
  MHLA_DEVICE_UNROLL
  for (int j = 0; j < pairs; ++j) {
    const int part = Sum::col_part(block, 2 * j);
    of_b[j] = b_as_stored
                  ? factor_row<Stored::transposed, b_exact>(b, part, upper, second * 8 + in_eight)
                  : factor_row<Stored::not_transposed, b_exact>(b, part, upper * 8 + in_eight, 0);
  }

  MHLA_DEVICE_UNROLL
  for (int k = 0; k < K; k += 16) {
    const bool is_half = k + 16 > K;  // 8 are left: what lies beyond is neither loaded nor used
    std::uint32_t rows[std::size_t{Sum::row_parts}][4];
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < Sum::row_parts; ++i) {
      if (!Sum::has_row_part(block, i)) continue;
      if constexpr (a_as_stored) {
        machine::load_matrices(rows[i], of_a[i] + inner_offset<Stored::not_transposed, TileA>(k) +
                                            (is_half ? Shared{0} : TileA::chunk_offset(0, upper)));
      } else {
        machine::load_matrices_transposed(
            rows[i], of_a[i] + inner_offset<Stored::transposed, TileA>(k) -
                         (is_half ? TileA::chunk_offset(upper * 8, 0) : Shared{0}));
      }
      use(i, rows[i]);
    }
    MHLA_DEVICE_UNROLL
    for (int j = 0; j < Sum::col_parts; j += 2) {
      if (!Sum::has_col_part(block, j)) continue;
      std::uint32_t columns[4];
      if constexpr (b_as_stored) {
        machine::load_matrices_transposed(
            columns, of_b[j / 2] + inner_offset<Stored::transposed, TileB>(k) -
                         (is_half ? TileB::chunk_offset(second * 8, 0) : Shared{0}));
      } else {
        machine::load_matrices(columns, of_b[j / 2] +
                                            inner_offset<Stored::not_transposed, TileB>(k) +
                                            (is_half ? Shared{0} : TileB::chunk_offset(0, second)));
      }
      MHLA_DEVICE_UNROLL
      for (int next = 0; next < 2; ++next) {
        if (j + next >= Sum::col_parts || !Sum::has_col_part(block, j + next)) continue;
        MHLA_DEVICE_UNROLL
        for (int i = 0; i < Sum::row_parts; ++i) {
          if (!Sum::has_row_part(block, i)) continue;
          float(&c)[4] = sum.value[i][j + next];
          if (!is_half) {
            machine::multiply_add<T>(c, rows[i], columns[2 * next], columns[2 * next + 1]);
          } else {
            machine::multiply_add<T>(c, rows[i][0], rows[i][1], columns[2 * next]);
          }
        }
      }
    }
  }
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
