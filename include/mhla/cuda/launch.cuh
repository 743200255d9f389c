// SPDX-License-Identifier: MIT
// How element-wise kernels are run. A kernel is a body, a function object that computes element `i`
// of `count` independently of the others; everything that only a CUDA compiler understands is in
// this file and machine.cuh.
#pragma once

#include <cuda_runtime.h>

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/device_memory.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

inline constexpr unsigned threads_of_block = 256;

template <class Body>
__global__ void __launch_bounds__(threads_of_block) run_body(const Body body, Index count) {
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    body(i);
}

/// Calls body(i) for every i in [0, count), in any order, on the device's stream.
template <class Body>
void launch(const CudaDevice& device, Index count, const Body& body) {
  static_assert(sizeof(Body) <= 4000, "mhla: a kernel's arguments are limited to 4 KB");
  if (count == 0) return;
  constexpr Index max_blocks = Index{1} << 20;
  const Index wanted = ceil_div(count, Index{threads_of_block});
  const auto blocks = static_cast<unsigned>(wanted < max_blocks ? wanted : max_blocks);
  // Not <<<>>>, whose errors only cudaGetLastError() reports, with those of the caller's calls.
  void* arguments[] = {const_cast<Body*>(&body), &count};
  check_cuda(cudaLaunchKernel(run_body<Body>, dim3(blocks), dim3(threads_of_block), arguments, 0,
                              device.stream()),
             "a kernel could not be launched");
}

}  // namespace cuda

MHLA_NAMESPACE_END
