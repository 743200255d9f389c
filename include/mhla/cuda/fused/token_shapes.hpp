// SPDX-License-Identifier: MIT
// How kernels over tokens cut values into slices so that their tiles fit into shared memory, and
// lay that out. Needs no CUDA header, so that a cost model can use it.
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/shared_layout.hpp>
#include <mhla/cuda/head_dims.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Whose tokens a kernel goes through.
enum class Side { queries, keys };

/// Of SummarizeBlocks.
MHLA_HOST_DEVICE constexpr int summary_slice(int value_dim) { return value_slice(value_dim, 128); }

/// Shared memory of a readout, in bytes from its start. Tiles of own tokens take the summary's
/// place.
struct ReadOutMemory {
  std::uint32_t key_sum;       // z
  std::uint32_t denominators;  // of a tile
  std::uint32_t own_sums;      // own tokens' parts of them
  std::uint32_t flags;         // whether a warp found an infinity
  std::uint32_t features;      // a ring of tiles
  std::uint32_t scores;
  std::uint32_t summary;
  std::uint32_t others;  // the other side's features
  std::uint32_t values;  // and values
  int bytes;
};

/// Of ReadOutBlocks.
struct ReadOutShape {
  int key_dim;
  int value_dim;
  bool adds_own;

  MHLA_HOST_DEVICE constexpr int rows() const { return tile_rows(key_dim); }
  /// Tiles of tokens on the way: one where a second would narrow the slice, as another thread block
  /// of the SM computes meanwhile.
  MHLA_HOST_DEVICE constexpr int stages() const {
    return adds_own || memory(slice(), 2).bytes > machine::max_shared_bytes ? 1 : 2;
  }
  MHLA_HOST_DEVICE constexpr ReadOutMemory memory(int slice, int stages) const {
    const int feature_bytes = tile_bytes(rows(), key_dim);
    SharedLayout layout;
    ReadOutMemory at{};
    at.key_sum = layout.take_bytes(key_dim * 4);
    const int own_rows = adds_own ? rows() : 0;
    at.denominators = layout.take_bytes(rows() * 4);
    at.own_sums = layout.take_bytes(own_rows * (8 / (rows() / 16)) * 4);
    at.flags = layout.take_bytes(adds_own ? 8 * 4 : 0);
    at.scores = layout.take_bytes(tile_bytes(own_rows, rows()));
    at.features = layout.take_bytes(stages * feature_bytes);
    SharedLayout own = layout;
    at.summary = layout.take_bytes(tile_bytes(key_dim, slice));
    at.others = own.take_bytes(tile_bytes(own_rows, key_dim));
    at.values = own.take_bytes(tile_bytes(own_rows, slice));
    layout.go_past(own);
    at.bytes = layout.bytes();
    return at;
  }
  MHLA_HOST_DEVICE constexpr int slice() const {
    for (const int most : {128, 64}) {
      const int slice = value_slice(value_dim, key_dim < most ? key_dim : most);
      if (memory(slice, 1).bytes <= machine::max_shared_bytes) return slice;
    }
    return value_slice(value_dim, 32);
  }
  MHLA_HOST_DEVICE constexpr int slices() const { return value_dim / slice(); }
};

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

/// Its shared memory: the readout's data of a tile, where the warps' key sums are before; rings of
/// tiles, where the mixing matrix is in between; then a record for every block: S, later S~, and z
/// and z~.
struct ResidentMemory {
  ReadOutMemory tile;
  std::uint32_t next_denominators;  // those of every other tile, where two teams work
  std::uint32_t warp_sums;
  std::uint32_t values;  // a ring of tiles
  std::uint32_t records;
  int key_sum;  // in a record
  int mixed_key_sum;
  int record_bytes;
};

struct ResidentShape {
  int key_dim;
  int slice;
  bool divides;
  bool rotates;

  static constexpr int warps = 8;  // of a team

  /// Two where key sums come out of the summaries' product: one team makes features while the other
  /// multiplies.
  MHLA_HOST_DEVICE constexpr int teams() const { return divides && rotates ? 1 : 2; }
  MHLA_HOST_DEVICE constexpr int stages() const { return teams() + 1; }
  MHLA_HOST_DEVICE constexpr int key_sum_bytes() const { return divides ? key_dim * 4 : 0; }
  MHLA_HOST_DEVICE constexpr int warp_sum_bytes() const {
    return rotates ? warps * key_sum_bytes() : 0;
  }
  MHLA_HOST_DEVICE constexpr ResidentMemory memory() const {
    constexpr auto side = static_cast<int>(max_resident_blocks);
    const int rows = tile_rows(key_dim);
    const int feature_bytes = tile_bytes(rows, key_dim);
    const int value_bytes = tile_bytes(rows, slice);
    ResidentMemory at{};
    SharedLayout layout;
    SharedLayout other;
    at.tile.denominators = layout.take_bytes(rows * 4);
    at.next_denominators = layout.take_bytes(teams() == 1 ? 0 : rows * 4);
    at.warp_sums = other.take_bytes(warp_sum_bytes());
    layout.go_past(other);
    other = layout;
    at.tile.features = layout.take_bytes(stages() * feature_bytes);
    at.values = layout.take_bytes(stages() * value_bytes);
    other.take_bytes(2 * tile_bytes(side, side));  // the matrix, high and low
    layout.go_past(other);
    at.records = layout.take_bytes(0);
    // Padded to an odd number of 16-byte chunks, so that eight blocks of a matrix load start in
    // eight different groups of banks.
    at.key_sum = key_dim * slice * 2 + 16;
    at.mixed_key_sum = at.key_sum + key_sum_bytes();
    at.record_bytes = at.mixed_key_sum + key_sum_bytes();
    return at;
  }
  constexpr int bytes(int blocks) const {
    return static_cast<int>(memory().records) + blocks * memory().record_bytes;
  }
};

/// Value columns that a thread block takes: the widest slice for which the summaries of all blocks
/// fit into `shared_bytes`; 0 if none does.
inline Index resident_slice_of(Index key_dim, Index value_dim, Index blocks, bool divides,
                               bool rotates, Index shared_bytes) {
  if (!has_resident_kernels(key_dim, value_dim) || blocks > max_resident_blocks) return 0;
  for (int n = 0; n < resident_slices; ++n) {
    const ResidentShape shape{static_cast<int>(key_dim),
                              resident_slice(static_cast<int>(value_dim), n), divides, rotates};
    if (shape.bytes(static_cast<int>(blocks)) <= shared_bytes) return shape.slice;
  }
  return 0;
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
