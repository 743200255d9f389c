// SPDX-License-Identifier: MIT
// Bytes that kernels request of memory. Needs no CUDA header.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Bytes that a kernel requests, cached or not.
struct MovedBytes {
  Index read = 0;
  Index written = 0;

  constexpr Index total() const { return read + written; }
  constexpr MovedBytes& operator+=(const MovedBytes& other) {
    read += other.read;
    written += other.written;
    return *this;
  }
  friend constexpr MovedBytes operator*(Index times, const MovedBytes& bytes) {
    return {times * bytes.read, times * bytes.written};
  }
  friend bool operator==(const MovedBytes&, const MovedBytes&) = default;
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
