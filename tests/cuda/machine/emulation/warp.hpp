// SPDX-License-Identifier: MIT
// What the lanes of a warp do together once all have come: products and exchanges, as the library's
// machine.cuh defines them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mhla/core/scalar.hpp>

namespace stand_in {

inline constexpr int warp_size = 32;

/// What threads meet for.
enum class Meeting : std::uint8_t {
  sync,
  sync_warp,
  load_matrices,
  load_matrices_transposed,
  multiply_add_bfloat16,
  multiply_add_half,
  multiply_add_8_bfloat16,
  multiply_add_8_half,
  exchange
};
inline const char* name_of(Meeting meeting) {
  switch (meeting) {
    case Meeting::sync:
      return "sync";
    case Meeting::sync_warp:
      return "sync_warp";
    case Meeting::load_matrices:
      return "load_matrices";
    case Meeting::load_matrices_transposed:
      return "load_matrices_transposed";
    case Meeting::multiply_add_bfloat16:
      return "multiply_add<BFloat16>";
    case Meeting::multiply_add_half:
      return "multiply_add<Half>";
    case Meeting::multiply_add_8_bfloat16:
      return "multiply_add<BFloat16> of 16 x 8";
    case Meeting::multiply_add_8_half:
      return "multiply_add<Half> of 16 x 8";
    case Meeting::exchange:
      return "exchange";
  }
  return "";
}

/// What a lane brings to a meeting and takes from it.
struct Part {
  std::uint32_t* registers = nullptr;  // to load
  std::uint32_t row = 0;
  float* c = nullptr;
  std::array<std::uint32_t, 4> a{};
  std::array<std::uint32_t, 2> b{};
  float value = 0;
  int mask = 0;
};
using Parts = std::array<Part, warp_size>;

/// Eight elements for each lane.
using MatrixRows = std::array<std::array<std::uint16_t, 8>, warp_size>;

inline void hand_out_matrices(Parts& parts, const MatrixRows& rows, bool is_transposed) {
  for (std::size_t l = 0; l < warp_size; ++l)
    for (std::size_t m = 0; m < 4; ++m) {
      const std::size_t row = l / 4, col = l % 4 * 2;
      const std::uint32_t low = is_transposed ? rows[8 * m + col][row] : rows[8 * m + row][col];
      const std::uint32_t high =
          is_transposed ? rows[8 * m + col + 1][row] : rows[8 * m + row][col + 1];
      parts[l].registers[m] = low | high << 16;
    }
}

/// c += a b for a of 16 x K, b of K x 8. The products and their sum are made in double, and rounded
/// once with c.
template <class T, std::size_t K>
void multiply_add(Parts& parts) {
  // Two columns each: the vectors that compilers keep in registers.
  using Pair [[gnu::vector_size(2 * sizeof(double))]] = double;
  std::array<std::array<double, K>, 16> a;
  std::array<std::array<Pair, 4>, K> b;
  const auto low = [](std::uint32_t pair) {
    return static_cast<double>(load(T::from_bits(static_cast<std::uint16_t>(pair & 0xffffu))));
  };
  const auto high = [](std::uint32_t pair) {
    return static_cast<double>(load(T::from_bits(static_cast<std::uint16_t>(pair >> 16))));
  };
  for (std::size_t l = 0; l < warp_size; ++l) {
    const Part& part = parts[l];
    const std::size_t g = l / 4, t = l % 4 * 2;
    for (std::size_t i = 0; i < K / 4; ++i) {
      auto& row = a[g + i % 2 * 8];
      row[t + i / 2 * 8] = low(part.a[i]);
      row[t + i / 2 * 8 + 1] = high(part.a[i]);
    }
    for (std::size_t i = 0; i < K / 8; ++i) {
      b[t + 8 * i][g / 2][g % 2] = low(part.b[i]);
      b[t + 8 * i + 1][g / 2][g % 2] = high(part.b[i]);
    }
  }
  for (std::size_t row = 0; row < 16; ++row) {
    Pair sum0{}, sum1{}, sum2{}, sum3{};
    for (std::size_t k = 0; k < K; ++k) {
      const Pair factor = {a[row][k], a[row][k]};
      sum0 += factor * b[k][0];
      sum1 += factor * b[k][1];
      sum2 += factor * b[k][2];
      sum3 += factor * b[k][3];
    }
    const std::array sums = {sum0, sum1, sum2, sum3};
    for (std::size_t i = 0; i < 4; ++i) {  // lanes 4 (row % 8) + i
      float* const c = parts[row % 8 * 4 + i].c + row / 8 * 2;
      for (int e = 0; e < 2; ++e) c[e] = static_cast<float>(static_cast<double>(c[e]) + sums[i][e]);
    }
  }
}

/// Every lane's value becomes that of the lane whose number differs by the bits of the mask.
inline void exchange(Parts& parts) {
  std::array<float, warp_size> values;
  for (std::size_t l = 0; l < warp_size; ++l) values[l] = parts[l].value;
  for (std::size_t l = 0; l < warp_size; ++l)
    parts[l].value = values[l ^ static_cast<std::size_t>(parts[l].mask)];
}

}  // namespace stand_in
