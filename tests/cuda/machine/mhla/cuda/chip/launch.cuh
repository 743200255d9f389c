// SPDX-License-Identifier: MIT
// In place of the library's launch.cuh: runs a kernel's body on the CPU, element by element, in an
// order that no kernel may count on; vectors that are not aligned are refused. Everything else of
// the CUDA backend is its true source.
#pragma once

#include <cstdint>
#include <cstring>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/device_memory.cuh>
#include <mhla/cuda/device.hpp>
#include <numeric>
#include <type_traits>

#include "cublas_v2.h"

MHLA_NAMESPACE_BEGIN

namespace cuda {

template <class Body>
void launch(const CudaDevice& device, Index count, const Body& body) {
  static_assert(sizeof(Body) <= 4000, "a kernel's arguments are limited to 4 KB");
  static_assert(std::is_trivially_copyable_v<Body>, "a kernel's arguments are copied as bytes");
  cublasContext& machine = *device.cublas();
  if (machine.launches == machine.refused_launch)
    throw CudaError("mhla: a kernel could not be launched: refused");
  ++machine.launches;
  machine.last_launch_stream = device.stream();
  if (count == 0) return;
  // A stride that meets every element once, another one in every launch.
  Index step = 1 + static_cast<Index>(machine.next_random() % static_cast<std::uint64_t>(count));
  while (std::gcd(step, count) != 1) ++step;
  step %= count;
  Index i = static_cast<Index>(machine.next_random() % static_cast<std::uint64_t>(count));
  for (Index done = 0; done < count; ++done) {
    body(i);
    i += step;
    if (i >= count) i -= count;
  }
}

struct RowShare {
  std::uint32_t first;
  std::uint32_t step;
};

/// Of one unit each.
template <class Body>
void launch_rows(const CudaDevice& device, Index rows, Index units, const Body& body) {
  struct Shares {
    Body body;
    Index units;

    void operator()(Index i) const {
      body(static_cast<std::uint32_t>(i / units),
           RowShare{static_cast<std::uint32_t>(i % units), static_cast<std::uint32_t>(units)});
    }
  };
  if (rows > 0 && units > 0) launch(device, rows * units, Shares{body, units});
}

inline void load_chunk(void* to, const void* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
    throw CudaError("a vector is loaded from where none is aligned");
  std::memcpy(to, from, 16);
}
inline void store_chunk(void* to, const void* from) {
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0)
    throw CudaError("a vector is stored to where none is aligned");
  std::memcpy(to, from, 16);
}

}  // namespace cuda

MHLA_NAMESPACE_END
