// SPDX-License-Identifier: MIT
// A thread block's shared memory: how much there is, shapes of tiles, slices of values whose tiles
// fit, and its layout, in which a kernel takes its tiles one after the other. Needs no CUDA header,
// so that a cost model can use it.
//
//   struct Memory {  // its members lay themselves out, in order
//     MHLA_HOST_DEVICE constexpr Memory() {}
//     SharedLayout layout{};
//     Tile<64, 128> keys = layout.take<Tile<64, 128>>();
//     SharedArray<float> sums = layout.take_array<float>(64);
//   };
#pragma once

#include <cstdint>
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

/// Value columns per thread block: all, or the largest even part of at most `most`.
MHLA_HOST_DEVICE constexpr int value_slice(int value_dim, int most) {
  int slices = 1;
  while (value_dim / slices > most || value_dim % slices != 0 || value_dim / slices % 8 != 0)
    ++slices;
  return value_dim / slices;
}

/// Some elements in shared memory.
template <class U>
struct SharedArray {
  std::uint32_t begin;  // in bytes from the start of the thread block's shared memory

  MHLA_HOST_DEVICE constexpr std::uint32_t at(int i) const {
    return begin + static_cast<std::uint32_t>(i) * std::uint32_t{sizeof(U)};
  }
};

/// Tiles in sequence, used in turn.
template <class TileType, int Slots>
struct Ring {
  static constexpr int bytes = Slots * TileType::bytes;
  std::uint32_t begin;

  MHLA_HOST_DEVICE constexpr TileType operator[](int slot) const {
    return {begin + static_cast<std::uint32_t>(slot * TileType::bytes)};
  }
};

class SharedLayout {
 public:
  /// Memory of a tile, a struct with `bytes` and the member `begin` alone; none if it is not used.
  template <class TileType>
  MHLA_HOST_DEVICE constexpr TileType take(bool is_used = true) {
    return {place(is_used ? TileType::bytes : 0)};
  }
  template <class U>
  MHLA_HOST_DEVICE constexpr SharedArray<U> take_array(int count) {
    return {place(count * static_cast<int>(sizeof(U)))};
  }
  /// Goes on after what another layout has taken, too.
  MHLA_HOST_DEVICE constexpr SharedLayout& go_past(const SharedLayout& other) {
    if (other.size > size) size = other.size;
    return *this;
  }
  MHLA_HOST_DEVICE constexpr std::uint32_t take_bytes(int count) { return place(count); }
  /// Bytes taken so far, a multiple of 16.
  MHLA_HOST_DEVICE constexpr int bytes() const { return size; }

 private:
  MHLA_HOST_DEVICE constexpr std::uint32_t place(int count) {
    const auto begin = static_cast<std::uint32_t>(size);
    size += (count + 15) / 16 * 16;
    return begin;
  }

  int size = 0;
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
