// SPDX-License-Identifier: MIT
// Shapes of tiles in a thread block's shared memory, and how kernels over tokens cut values into
// slices so that their tiles fit. Needs no CUDA header, so that a cost model can use it.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/cuda/head_dims.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::machine {

/// The most shared memory of a thread block on every chip since sm_80; sm_86, sm_89 and sm_120 set
/// the limit.
inline constexpr int max_shared_bytes = 99 * 1024;

/// Shared memory of a kernel's thread blocks: the body's `shared_bytes`, the same for all calls and
/// available on every chip; or its shared_bytes(), which depends on the call.
template <class Body>
int shared_bytes_of(const Body& body) {
  if constexpr (requires { body.shared_bytes(); }) {
    return body.shared_bytes();
  } else {
    static_assert(Body::shared_bytes <= max_shared_bytes);
    return Body::shared_bytes;
  }
}

}  // namespace cuda::machine

namespace cuda::fused {

/// Whose tokens a kernel goes through.
enum class Side { queries, keys };

/// Bytes between rows of 16-bit elements: an odd number of 16-byte chunks.
constexpr int tile_stride(int cols) { return (cols / 8 | 1) * 16; }
constexpr int tile_bytes(int rows, int cols) { return rows * tile_stride(cols); }
/// Likewise of floats: rows are 8 banks apart.
constexpr int float_tile_stride(int cols) { return (cols + (40 - cols % 32) % 32) * 4; }
constexpr int float_tile_bytes(int rows, int cols) { return rows * float_tile_stride(cols); }

/// Value columns per thread block: all, or the largest even part of at most `most`.
constexpr int value_slice(int value_dim, int most) {
  int slices = 1;
  while (value_dim / slices > most || value_dim % slices != 0 || value_dim / slices % 8 != 0)
    ++slices;
  return value_dim / slices;
}

/// Of SummarizeBlocks.
constexpr int summary_slice(int value_dim) { return value_slice(value_dim, 128); }

/// Shared memory of ReadOutBlocks: z, the denominators, and what own tokens need; tiles of
/// features; then the summary's tiles, later overwritten by those of own tokens.
struct ReadOutShape {
  int key_dim;
  int value_dim;
  int parts;
  bool adds_own;
  bool weighs_own;

  constexpr int rows() const { return tile_rows(key_dim); }
  constexpr int stages() const { return adds_own ? 1 : 2; }
  constexpr int feature_bytes() const { return tile_bytes(rows(), key_dim); }
  constexpr int sums_of_row() const { return 8 / (rows() / 16); }
  constexpr int denominators_at() const { return key_dim * 4; }
  constexpr int own_sums_at() const { return denominators_at() + rows() * 4; }
  constexpr int flags_at() const {
    return own_sums_at() + (adds_own ? rows() * sums_of_row() * 4 : 0);
  }
  constexpr int own_weights_at() const { return flags_at() + (adds_own ? 32 * 4 : 0); }
  constexpr int features_at() const { return own_weights_at() + (weighs_own ? rows() * 4 : 0); }
  constexpr int scores_at() const { return features_at() + stages() * feature_bytes(); }
  constexpr int summary_at() const {
    return scores_at() + (adds_own ? tile_bytes(rows(), rows()) : 0);
  }
  constexpr int bytes_with(int slice) const {
    const int summary = parts * tile_bytes(key_dim, slice);
    const int own = adds_own ? feature_bytes() + tile_bytes(rows(), slice) : 0;
    return summary_at() + std::max(summary, own);
  }
  constexpr int slice() const {
    for (const int most : {128, 64}) {
      const int slice = value_slice(value_dim, std::min(key_dim, most));
      if (bytes_with(slice) <= machine::max_shared_bytes) return slice;
    }
    return value_slice(value_dim, 32);
  }
  constexpr int slices() const { return value_dim / slice(); }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
