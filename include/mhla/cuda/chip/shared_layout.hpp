// SPDX-License-Identifier: MIT
// Lays out a thread block's shared memory: a kernel takes its tiles one after the other.
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

namespace cuda::fused {

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
