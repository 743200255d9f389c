// SPDX-License-Identifier: MIT
// How the kernels that mix key sums divide their work. Needs no CUDA header, so that a cost model
// can use it.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/block_mixing.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// z~ = m z or, as its adjoint, dz = m^T dz~. A thread block computes a tile of one result: a
/// thread one column of eight rows, as many threads side by side as there are columns.
struct KeySumMixingWork {
  static constexpr int threads = 128;
  static constexpr int rows_of_thread = 8;
  static constexpr int staged_weights = 1024;

  MixingWork mixing;  // `width` is that of a key sum
  Index units;
  int columns;  // of a tile, whole warps
  int rows;
  int column_tiles;
  int row_tiles;

  KeySumMixingWork(const MixingShape& shape, bool adjoint)
      : mixing(shape, adjoint),
        units(shape.units),
        columns(std::clamp((mixing.width + 31) / 32 * 32, 32, threads)),
        rows(threads / columns * rows_of_thread),
        column_tiles((mixing.width + columns - 1) / columns),
        row_tiles((mixing.rows + rows - 1) / rows) {}

  Index blocks() const {
    return checked_mul(checked_mul(units, mixing.outputs), Index{row_tiles} * column_tiles);
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
