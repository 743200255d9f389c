// SPDX-License-Identifier: MIT
// Products of tiles by a block's warps, accumulated in registers in float.
#pragma once

#include <mhla/cuda/chip/tile.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// 1 in T's format.
template <class T>
inline constexpr std::uint32_t one_bits = std::is_same_v<T, BFloat16> ? 0x3f80u : 0x3c00u;
/// The bits that are all set in infinities and NaNs.
template <class T>
inline constexpr std::uint32_t exponent_bits = std::is_same_v<T, BFloat16> ? 0x7f80u : 0x7c00u;

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
  /// Calls f(i, half, row) for each row of which this thread has elements: value[i][j][2 * half]
  /// and value[i][j][2 * half + 1], for every j. A part has 16 rows, the last one perhaps 8, so
  /// that all lanes of a warp take the same branch.
  template <class F>
  MHLA_DEVICE static void for_each_row(const Block& block, const F& f) {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < row_parts; ++i) {
      MHLA_DEVICE_UNROLL
      for (int half = 0; half < 2; ++half)
        if (has_row_part(block, i) && (M % 16 == 0 || row_part(block, i) * 16 + half * 8 < M))
          f(i, half, row_part(block, i) * 16 + half * 8 + block.lane() / 4);
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

/// Addresses of a lane's rows in matrix loads of a factor from inner index 0 on: four matrices of
/// eight rows and columns, two from `part` on along the outer extent and two along the inner one,
/// of which `outer` and `inner` are the lane's. Places outside of the tile, whose products are not
/// used, become the last inside; where there are none nothing is compared.
template <Stored stored, bool is_exact, class TileType>
MHLA_DEVICE Shared factor_row(int lane, const TileType& tile, int part, int outer, int inner) {
  constexpr bool as_stored = stored == Stored::not_transposed;
  const int row_of_lane = (as_stored ? outer : inner) * 8 + lane % 8;
  const int row = as_stored ? part * 8 + row_of_lane : row_of_lane;
  const int chunk = as_stored ? 0 : part + outer;
  return is_exact ? tile.begin + tile.chunk_offset(row, chunk) : tile.chunk(row, chunk);
}
/// Loads from there on inner indices [k, k + 16), or eight of them if the others are not there.
template <Stored stored, class TileType>
MHLA_DEVICE void load_factor(Shared row, int k, int inner, bool is_half,
                             std::uint32_t (&matrices)[4]) {
  if constexpr (stored == Stored::not_transposed) {
    machine::load_matrices(matrices, row + TileType::chunk_offset(0, k / 8) +
                                         (is_half ? Shared{0} : TileType::chunk_offset(0, inner)));
  } else {
    machine::load_matrices_transposed(
        matrices, row + TileType::chunk_offset(k, 0) -
                      (is_half ? TileType::chunk_offset(inner * 8, 0) : Shared{0}));
  }
}

/// Sums of the rows of a product's first factor, of which each warp has those of its parts.
template <class T, class Sum>
struct RowSums {
  float value[std::size_t{Sum::row_parts}][4] = {};

  /// Adds the 16 columns of part i.
  MHLA_DEVICE void operator()(int i, const std::uint32_t (&rows)[4]) {
    constexpr std::uint32_t ones = one_bits<T> << 16 | one_bits<T>;
    machine::multiply_add<T>(value[i], rows, ones, ones);
  }
  /// Calls f(row, sum) for every row, by one thread each.
  template <class F>
  MHLA_DEVICE void for_each(const Block& block, const F& f) const {
    if (Sum::col_part(block, 0) != 0 || block.lane() % 4 != 0) return;
    Sum::for_each_row(block, [&](int i, int half, int row) { f(row, value[i][2 * half]); });
  }
};
/// Adds the products of 16 columns of a, or of 8 if it `is_half`, and parts j and j + 1 of b, of
/// eight columns each.
template <class T, class Sum>
MHLA_DEVICE void multiply_add_parts(const Block& block, Sum& sum,
                                    const std::uint32_t (&rows)[std::size_t{Sum::row_parts}][4],
                                    const std::uint32_t (&columns)[4], int j, bool is_half) {
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
/// sum += a b, of b's inner extent K, a multiple of 8. use(i, rows) gets each part of a, 16 x 16,
/// as the i-th row of parts multiplies it; K is then a multiple of 16. The warps of the block meet.
template <class T, Stored a_stored, Stored b_stored, int M, int N, int WarpsM, int WarpsN,
          class TileA, class TileB, class Use = const Ignore>
MHLA_DEVICE void multiply_add(const Block& block, Accumulators<M, N, WarpsM, WarpsN>& sum,
                              const TileA& a, const TileB& b, Use& use = Ignore()) {
  using Sum = Accumulators<M, N, WarpsM, WarpsN>;
  constexpr bool a_as_stored = a_stored == Stored::not_transposed;
  constexpr bool b_as_stored = b_stored == Stored::not_transposed;
  constexpr int K = b_as_stored ? TileB::rows : TileB::cols;
  static_assert(K % (std::is_same_v<Use, const Ignore> ? 8 : 16) == 0);
  static_assert(a_as_stored ? TileA::rows >= M && TileA::cols >= K
                            : TileA::rows >= K && TileA::cols >= M);
  static_assert((b_as_stored ? TileB::cols : TileB::rows) >= N);
  constexpr bool a_exact = M % 16 == 0 && Sum::all_row_parts % WarpsM == 0;
  constexpr bool b_exact = Sum::col_parts % 2 == 0 && Sum::all_col_parts % WarpsN == 0;
  // The outer extent of b lies along columns of its tile, if that is not transposed.
  constexpr Stored b_outer = b_as_stored ? Stored::transposed : Stored::not_transposed;
  const int lane = block.lane();
  const int second = lane / 8 % 2;  // of a pair of matrices
  const int upper = lane / 16;      // pair
  Shared of_a[std::size_t{Sum::row_parts}];
  MHLA_DEVICE_UNROLL
  for (int i = 0; i < Sum::row_parts; ++i)
    of_a[i] = factor_row<a_stored, a_exact>(lane, a, Sum::row_part(block, i) * 2, second, upper);
  constexpr int pairs = (Sum::col_parts + 1) / 2;  // of parts, one load each
  Shared of_b[std::size_t{pairs}];
  MHLA_DEVICE_UNROLL
  for (int j = 0; j < pairs; ++j)
    of_b[j] = factor_row<b_outer, b_exact>(lane, b, Sum::col_part(block, 2 * j), upper, second);

  MHLA_DEVICE_UNROLL
  for (int k = 0; k < K; k += 16) {
    const bool is_half = k + 16 > K;
    std::uint32_t rows[std::size_t{Sum::row_parts}][4];
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < Sum::row_parts; ++i) {
      if (!Sum::has_row_part(block, i)) continue;
      load_factor<a_stored, TileA>(of_a[i], k, upper, is_half, rows[i]);
      use(i, rows[i]);
    }
    MHLA_DEVICE_UNROLL
    for (int j = 0; j < Sum::col_parts; j += 2) {
      if (!Sum::has_col_part(block, j)) continue;
      std::uint32_t columns[4];
      load_factor<b_outer, TileB>(of_b[j / 2], k, second, is_half, columns);
      multiply_add_parts<T>(block, sum, rows, columns, j, is_half);
    }
  }
}

// Products of which rows do not see all inner rows: a coefficient of 0 would not keep a NaN from
// them. Non-finite elements become zero before they are multiplied, by the same instructions in the
// same order as where all is finite, so that what a row does not see changes no bit of it.

MHLA_DEVICE float not_a_number() {
  return scalar_traits::reinterpret<float>(std::uint32_t{0x7fc00000});
}
/// Replaces non-finite elements by zero; returns a pair with a one for each of them.
template <class T>
MHLA_DEVICE std::uint32_t take_out_not_finite(std::uint32_t& pair) {
  constexpr std::uint32_t exponent = exponent_bits<T>;
  constexpr std::uint32_t one = one_bits<T>;
  const bool first = (pair & exponent) == exponent;
  const bool second = (pair >> 16 & exponent) == exponent;
  pair &= (first ? 0 : 0xffffu) | (second ? 0 : 0xffff0000u);
  return (first ? one : 0) | (second ? one << 16 : 0);
}

/// sums += a b for 16 rows of a, 16 columns of which read_a(k, registers) reads, and rows
/// [row, row + K) of b, which has infinities, `count` parts of eight columns from `column` on. Sums
/// that see one, by sees(half, row of b), become NaN. The warp meets.
template <class T, int K, std::size_t Parts, class ReadA, class TileB, class Sees>
MHLA_DEVICE void multiply_add_seen(const Block& block, float (&sums)[Parts][4], const ReadA& read_a,
                                   const TileB& b, int row, int column, int count,
                                   const Sees& sees) {
  float kept[Parts][4];  // in memory: registers have no addresses, and this is rare
  MHLA_DEVICE_UNROLL
  for (std::size_t part = 0; part < Parts; ++part)
    for (int e = 0; e < 4; ++e) kept[part][e] = sums[part][e];
  MHLA_DEVICE_ROLLED
  for (int part = 0; part < count; ++part) {
    std::uint32_t found[2] = {0, 0};
    MHLA_DEVICE_ROLLED
    for (int r = row; r < row + K; ++r) {
      auto pair = machine::read<std::uint32_t>(b.at(r, column + part * 8 + block.lane() % 4 * 2));
      const std::uint32_t here = take_out_not_finite<T>(pair);
      for (int half = 0; half < 2; ++half)
        if (sees(half, r)) found[half] |= here;
    }
    float c[4];
    for (int e = 0; e < 4; ++e)
      c[e] = (found[e / 2] >> e % 2 * 16 & 0xffffu) == 0 ? kept[part][e] : not_a_number();
    MHLA_DEVICE_ROLLED
    for (int k = 0; k < K; k += 16) {
      std::uint32_t of_a[4], of_b[4];
      read_a(k, of_a);
      machine::load_matrices_transposed(of_b, b.at(row + k + block.lane() % 16, column + part * 8));
      take_out_not_finite<T>(of_b[0]);
      take_out_not_finite<T>(of_b[1]);
      machine::multiply_add<T>(c, of_a, of_b[0], of_b[1]);
    }
    for (int e = 0; e < 4; ++e) kept[part][e] = c[e];
  }
  MHLA_DEVICE_UNROLL
  for (std::size_t part = 0; part < Parts; ++part)
    for (int e = 0; e < 4; ++e) sums[part][e] = kept[part][e];
}

/// 16 x 16 elements of a matrix, as operands of products: one if a row of the result sees an inner
/// row, by sees(row, inner row).
template <class T, class Sees>
MHLA_DEVICE void ones_where_seen(const Block& block, int first_row, int first, const Sees& sees,
                                 std::uint32_t (&ones)[4]) {
  MHLA_DEVICE_UNROLL
  for (int x = 0; x < 4; ++x) {
    const int row = first_row + block.lane() / 4 + x % 2 * 8;
    const int at = first + x / 2 * 8 + block.lane() % 4 * 2;
    ones[x] = (sees(row, at) ? one_bits<T> : 0) | (sees(row, at + 1) ? one_bits<T> << 16 : 0);
  }
}

/// If rows see different inner rows, a coefficient of zero would not keep a NaN from rows that do
/// not see it. So non-finite elements become zero, and sums of rows that see at least one become
/// NaN.
template <class T>
MHLA_DEVICE void guard_unseen(const std::uint32_t (&sees)[4], std::uint32_t& upper,
                              std::uint32_t& lower, float (&to)[4]) {
  const std::uint32_t of_upper = take_out_not_finite<T>(upper);
  const std::uint32_t of_lower = take_out_not_finite<T>(lower);
  float count[4] = {};
  machine::multiply_add<T>(count, sees, of_upper, of_lower);
  MHLA_DEVICE_UNROLL
  for (int x = 0; x < 4; ++x)
    if (count[x] > 0) to[x] = not_a_number();
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
