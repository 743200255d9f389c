// SPDX-License-Identifier: MIT
// For products of which rows do not see all inner rows: a coefficient of 0 would not keep a NaN
// from them. Non-finite elements become zero before they are multiplied, by the same instructions
// in the same order as where all is finite, so that what a row does not see changes no bit of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Replaces non-finite elements by zero; returns a pair with a one for each of them.
template <class T>
MHLA_DEVICE std::uint32_t take_out_not_finite(std::uint32_t& pair) {
  constexpr bool is_bfloat16 = std::is_same_v<T, BFloat16>;
  constexpr std::uint32_t exponent = is_bfloat16 ? 0x7f80 : 0x7c00;
  constexpr std::uint32_t one = is_bfloat16 ? 0x3f80 : 0x3c00;
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
      c[e] = (found[e / 2] >> e % 2 * 16 & 0xffffu) == 0
                 ? kept[part][e]
                 : scalar_traits::reinterpret<float>(std::uint32_t{0x7fc00000});
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

}  // namespace cuda::fused

MHLA_NAMESPACE_END
