// SPDX-License-Identifier: MIT
// In place of CUDA's header for C++: kernels are functions, which a launch calls for one thread of
// its grid after the other. The library's true launch.cuh compiles with it.
#pragma once

#include "cuda_runtime_api.h"

#define __global__
#define __launch_bounds__(threads)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;

  explicit dim3(unsigned count) : x(count) {}
};
inline dim3 gridDim(1), blockDim(1), blockIdx(0), threadIdx(0);

namespace stand_in {

/// What a test wants of the next launches, and what it asks afterwards.
struct Launches {
  cudaError_t refuse_with = cudaSuccess;
  long made = 0;
  dim3 blocks{0}, threads{0};
  cudaStream_t stream = nullptr;
};
inline Launches& launches() {
  static Launches launches;
  return launches;
}

}  // namespace stand_in

template <class Body, class Count>
cudaError_t cudaLaunchKernel(void (*kernel)(Body, Count), dim3 blocks, dim3 threads,
                             void** arguments, std::size_t /*shared_bytes*/, cudaStream_t stream) {
  stand_in::Launches& launches = stand_in::launches();
  if (launches.refuse_with != cudaSuccess) return stand_in::runtime().leave(launches.refuse_with);
  ++launches.made;
  launches.blocks = gridDim = blocks;
  launches.threads = blockDim = threads;
  launches.stream = stream;
  for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads.x; ++threadIdx.x)
      kernel(*static_cast<Body*>(arguments[0]), *static_cast<Count*>(arguments[1]));
  return cudaSuccess;
}
