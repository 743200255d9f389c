// SPDX-License-Identifier: MIT
// Shapes of tiles in a thread block's shared memory, and slices of values whose tiles fit. Needs no
// CUDA header, so that a cost model can use it.
#pragma once

#include <mhla/core/config.hpp>

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

/// Bytes between rows of 16-bit elements: an odd number of 16-byte chunks.
MHLA_HOST_DEVICE constexpr int tile_stride(int cols) { return (cols / 8 | 1) * 16; }
MHLA_HOST_DEVICE constexpr int tile_bytes(int rows, int cols) { return rows * tile_stride(cols); }
/// Likewise of floats: rows are 8 banks apart.
MHLA_HOST_DEVICE constexpr int float_tile_stride(int cols) {
  return (cols + (40 - cols % 32) % 32) * 4;
}
MHLA_HOST_DEVICE constexpr int float_tile_bytes(int rows, int cols) {
  return rows * float_tile_stride(cols);
}

/// Value columns per thread block: all, or the largest even part of at most `most`.
MHLA_HOST_DEVICE constexpr int value_slice(int value_dim, int most) {
  int slices = 1;
  while (value_dim / slices > most || value_dim % slices != 0 || value_dim / slices % 8 != 0)
    ++slices;
  return value_dim / slices;
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
