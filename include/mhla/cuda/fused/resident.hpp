// SPDX-License-Identifier: MIT
// Shapes of the kernel that keeps all block summaries of a head in shared memory: its layout, and
// how value columns are cut into slices that fit. Mixing does not couple columns: slices share only
// the queries and keys that each reads. Needs no CUDA header, so that a cost model can use it.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/readout_shape.hpp>
#include <mhla/cuda/head_dims.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Maximum token blocks: a warp holds a column of all of them in registers.
inline constexpr Index max_resident_blocks = 64;

/// Head dimensions that it supports, among those of fused kernels: summaries of larger heads would
/// need so many slices that queries and keys are read too often.
constexpr bool has_resident_kernels(Index key_dim, Index value_dim) {
  return has_fused_kernels(key_dim, value_dim) && key_dim <= 128 && value_dim <= 128;
}

/// Widths of slices that it is compiled for, widest first.
inline constexpr int resident_slices = 3;
constexpr int resident_slice(int value_dim, int n) {
  constexpr int most[std::size_t{resident_slices}] = {96, 48, 24};
  return value_slice(value_dim, most[n]);
}

/// Its shared memory: the readout's data of a tile, where the warps' key sums are before; a ring of
/// tiles, where the mixing matrix is in between; scores of own tokens; then a record for every
/// block: S, later S~, and z and z~.
struct ResidentShape {
  int key_dim;
  int slice;
  bool divides;
  bool adds_own;

  static constexpr int warps = 8;
  static constexpr int stages = 2;

  constexpr int rows() const { return tile_rows(key_dim); }
  /// Tiles of own tokens take the ring's second slot.
  constexpr int read_out_stages() const { return adds_own ? 1 : stages; }

  static constexpr int denominators_at() { return 0; }
  constexpr int own_sums_at() const { return rows() * 4; }
  constexpr int flags_at() const {
    return own_sums_at() + (adds_own ? rows() * (warps / (rows() / 16)) * 4 : 0);
  }
  static constexpr int warp_sums_at() { return 0; }
  constexpr int ring_at() const {
    const int of_tile = flags_at() + (adds_own ? warps * 4 : 0);
    return std::max(of_tile, divides ? warps * key_dim * 4 : 0);
  }
  constexpr int stage_bytes() const {
    return tile_bytes(rows(), key_dim) + tile_bytes(rows(), slice);
  }
  /// Of one of the matrix's two parts, high and low.
  static constexpr int matrix_bytes() {
    constexpr int side = static_cast<int>(max_resident_blocks);
    return tile_bytes(side, side);
  }
  constexpr int scores_at() const {
    return ring_at() + std::max(stages * stage_bytes(), 2 * matrix_bytes());
  }
  constexpr int records_at() const {
    return scores_at() + (adds_own ? tile_bytes(rows(), rows()) : 0);
  }
  /// Records of blocks are padded to an odd number of 16-byte chunks, so that eight blocks of a
  /// matrix load start in eight different groups of banks.
  constexpr int key_sum_at() const { return key_dim * slice * 2 + 16; }
  constexpr int mixed_key_sum_at() const { return key_sum_at() + (divides ? key_dim * 4 : 0); }
  constexpr int record_bytes() const { return mixed_key_sum_at() + (divides ? key_dim * 4 : 0); }
  constexpr int bytes(int blocks) const { return records_at() + blocks * record_bytes(); }
};

/// Value columns that a thread block takes: the widest slice for which the summaries of all blocks
/// fit into `shared_bytes`; 0 if none does.
inline Index resident_slice_of(Index key_dim, Index value_dim, Index blocks, bool divides,
                               bool adds_own, Index shared_bytes) {
  if (!has_resident_kernels(key_dim, value_dim) || blocks > max_resident_blocks) return 0;
  for (int n = 0; n < resident_slices; ++n) {
    const ResidentShape shape{static_cast<int>(key_dim),
                              resident_slice(static_cast<int>(value_dim), n), divides, adds_own};
    if (shape.bytes(static_cast<int>(blocks)) <= shared_bytes) return shape.slice;
  }
  return 0;
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
