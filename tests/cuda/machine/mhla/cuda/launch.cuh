// SPDX-License-Identifier: MIT
// In place of the library's launch.cuh: runs a kernel's body on the CPU, element by element, in an
// order that no kernel may count on. Everything else of the CUDA backend is its true source.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
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

}  // namespace cuda

MHLA_NAMESPACE_END
