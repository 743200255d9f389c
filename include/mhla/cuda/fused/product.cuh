// SPDX-License-Identifier: MIT
// Products of tiles by a block's warps, accumulated in registers in float.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/cuda/fused/tile.cuh>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// A matrix of M x N floats in the registers of WarpsM x WarpsN warps: warp w has, of its 16 x 8
/// parts, every WarpsM-th row of parts from w % WarpsM on, and the w / WarpsM-th stretch of their
/// columns.
template <int M, int N, int WarpsM, int WarpsN>
struct Accumulators {
  static_assert(M % 8 == 0 && N % 8 == 0);
  static constexpr int warps = WarpsM * WarpsN;
  static constexpr int all_row_parts = (M + 15) / 16;
  static constexpr int all_col_parts = N / 8;
  static constexpr int row_parts = (all_row_parts + WarpsM - 1) / WarpsM;
  static constexpr int col_parts = (all_col_parts + WarpsN - 1) / WarpsN;

  float value[std::size_t{row_parts}][std::size_t{col_parts}][4] = {};

  MHLA_DEVICE static int row_part(const Block& block, int i) {
    return block.warp() % WarpsM + i * WarpsM;
  }
  MHLA_DEVICE static int col_part(const Block& block, int j) {
    return block.warp() / WarpsM * col_parts + j;
  }

  MHLA_DEVICE void clear() {
    for (auto& row : value)
      for (auto& part : row)
        for (float& element : part) element = 0;
  }

  /// Calls f(row, col, first, second) for this thread's elements: those of columns col and col + 1.
  template <class F>
  MHLA_DEVICE void for_each_pair(const Block& block, const F& f) {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < row_parts; ++i) {
      MHLA_DEVICE_UNROLL
      for (int j = 0; j < col_parts; ++j) {
        const int col = col_part(block, j) * 8 + block.lane() % 4 * 2;
        MHLA_DEVICE_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int row = row_part(block, i) * 16 + block.lane() / 4 + half * 8;
          if (row < M && col < N) f(row, col, value[i][j][2 * half], value[i][j][2 * half + 1]);
        }
      }
    }
  }
};

/// A factor's orientation in its tile.
enum class Stored { straight, transposed };

/// sum += a b, of inner extent K, a multiple of 8. The warps of the block meet.
template <class T, int K, Stored a_stored, Stored b_stored, int M, int N, int WarpsM, int WarpsN,
          class TileA, class TileB>
MHLA_DEVICE void multiply_add(const Block& block, Accumulators<M, N, WarpsM, WarpsN>& sum,
                              const TileA& a, const TileB& b) {
  using Sum = Accumulators<M, N, WarpsM, WarpsN>;
  static_assert(K % 8 == 0);
  static_assert(a_stored == Stored::straight ? TileA::rows >= M && TileA::cols >= K
                                             : TileA::rows >= K && TileA::cols >= M);
  static_assert(b_stored == Stored::straight ? TileB::rows >= K && TileB::cols >= N
                                             : TileB::rows >= N && TileB::cols >= K);
  const int lane = block.lane();
  const int in_eight = lane % 8;
  const int second = lane / 8 % 2;  // of a pair of matrices
  const int upper = lane / 16;      // pair
  MHLA_DEVICE_UNROLL
  for (int k = 0; k < K; k += 16) {
    std::uint32_t of_a[std::size_t{Sum::row_parts}][4];
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < Sum::row_parts; ++i) {
      const int part = Sum::row_part(block, i);
      if (part >= Sum::all_row_parts) continue;
      if constexpr (a_stored == Stored::straight) {
        machine::load_matrices(of_a[i], a.chunk(part * 16 + second * 8 + in_eight, k / 8 + upper));
      } else {
        machine::load_matrices_transposed(of_a[i],
                                          a.chunk(k + upper * 8 + in_eight, part * 2 + second));
      }
    }
    MHLA_DEVICE_UNROLL
    for (int j = 0; j < Sum::col_parts; j += 2) {  // two parts per load
      const int part = Sum::col_part(block, j);
      if (part >= Sum::all_col_parts) continue;
      std::uint32_t of_b[4];
      if constexpr (b_stored == Stored::straight) {
        machine::load_matrices_transposed(of_b, b.chunk(k + second * 8 + in_eight, part + upper));
      } else {
        machine::load_matrices(of_b, b.chunk((part + upper) * 8 + in_eight, k / 8 + second));
      }
      MHLA_DEVICE_UNROLL
      for (int next = 0; next < 2; ++next) {
        if (j + next >= Sum::col_parts || part + next >= Sum::all_col_parts) continue;
        MHLA_DEVICE_UNROLL
        for (int i = 0; i < Sum::row_parts; ++i) {
          if (Sum::row_part(block, i) >= Sum::all_row_parts) continue;
          float(&c)[4] = sum.value[i][j + next];
          if (k + 16 <= K) {
            machine::multiply_add<T>(c, of_a[i], of_b[2 * next], of_b[2 * next + 1]);
          } else {
            machine::multiply_add<T>(c, of_a[i][0], of_a[i][1], of_b[2 * next]);
          }
        }
      }
    }
  }
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
