// SPDX-License-Identifier: MIT
// How kernels over tokens cut values into slices so that their tiles fit into shared memory. Needs
// no CUDA header, so that a cost model can use it.
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/cuda/chip/shared_layout.hpp>
#include <mhla/cuda/chip/tile_shape.hpp>
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

  /// What every readout has of a tile's rows.
  MHLA_HOST_DEVICE constexpr void take_rows(SharedLayout& layout, int rows, bool adds_own) {
    const int own_rows = adds_own ? rows : 0;
    denominators = layout.take_bytes(rows * 4);
    own_sums = layout.take_bytes(own_rows * (8 / (rows / 16)) * 4);
    flags = layout.take_bytes(adds_own ? 8 * 4 : 0);
    scores = layout.take_bytes(tile_bytes(own_rows, rows));
  }
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
    at.take_rows(layout, rows(), adds_own);
    at.features = layout.take_bytes(stages * feature_bytes);
    SharedLayout own = layout;
    at.summary = layout.take_bytes(tile_bytes(key_dim, slice));
    at.others = own.take_bytes(adds_own ? feature_bytes : 0);
    at.values = own.take_bytes(adds_own ? tile_bytes(rows(), slice) : 0);
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

}  // namespace cuda::fused

MHLA_NAMESPACE_END
