// SPDX-License-Identifier: MIT
// Tiles of floats: sums of products, on the way from the registers of warps to the lanes that share
// a row.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/chip/tile_shape.hpp>
#include <mhla/cuda/fused/strips.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

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
