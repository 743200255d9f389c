// SPDX-License-Identifier: MIT
// How kernels without shared memory are run. A kernel is a body, a function object that computes
// element `i` of `count`, or a share of row `r`, independently of the others; everything that only
// a CUDA compiler understands is in this file and machine.cuh.
#pragma once

#include <cuda_runtime.h>

#include <mhla/cuda/chip/device_memory.cuh>
#include <mhla/cuda/device.hpp>

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
void launch(const CudaDevice& device, Index count, Body body) {
  static_assert(sizeof(Body) <= 4000, "mhla: a kernel's arguments are limited to 4 KB");
  if (count == 0) return;
  constexpr Index max_blocks = Index{1} << 20;
  const Index wanted = ceil_div(count, Index{threads_of_block});
  const auto blocks = static_cast<unsigned>(wanted < max_blocks ? wanted : max_blocks);
  // Not <<<>>>, whose errors only cudaGetLastError() reports, with those of the caller's calls.
  void* arguments[] = {&body, &count};
  check_launch(cudaLaunchKernel(run_body<Body>, dim3(blocks), dim3(threads_of_block), arguments, 0,
                                device.stream()));
}

/// A thread's share of a row: units first, first + step, ...
struct RowShare {
  std::uint32_t first;
  std::uint32_t step;
};

/// 2^shift threads, side by side, share a row.
struct RowThreads {
  std::uint32_t rows;
  std::uint32_t shift;
};

template <class Body>
__global__ void __launch_bounds__(threads_of_block)
    run_rows(const Body body, const RowThreads threads) {
  const std::uint32_t row =
      blockIdx.x * (threads_of_block >> threads.shift) + (threadIdx.x >> threads.shift);
  const std::uint32_t step = 1u << threads.shift;
  if (row < threads.rows) body(row, RowShare{threadIdx.x & (step - 1), step});
}

/// Calls body(row, share) for every row in [0, rows), in any order, with shares that make up its
/// `units`: of about eight, so that a row need not be located for each; of less where that leaves
/// threads idle.
template <class Body>
void launch_rows(const CudaDevice& device, Index rows, Index units, Body body) {
  static_assert(sizeof(Body) <= 4000, "mhla: a kernel's arguments are limited to 4 KB");
  if (rows == 0 || units == 0) return;
  if (rows > 0x7fffffff || units > 0x7fffffff)
    throw ShapeError({"mhla: ", rows, " rows of ", units,
                      " elements are more than a CUDA kernel of this library can index"});
  constexpr Index enough_threads = Index{1} << 18;
  RowThreads threads{static_cast<std::uint32_t>(rows), 0};
  Index lanes = 1;
  for (; lanes < 32 && lanes < units && (8 * lanes < units || rows * lanes < enough_threads);
       lanes *= 2)
    ++threads.shift;
  const auto blocks = static_cast<unsigned>(ceil_div(rows, Index{threads_of_block} / lanes));
  void* arguments[] = {&body, &threads};
  check_launch(cudaLaunchKernel(run_rows<Body>, dim3(blocks), dim3(threads_of_block), arguments, 0,
                                device.stream()));
}

/// Copies 16 bytes that are aligned to that in memory, as one access.
MHLA_HOST_DEVICE inline void load_chunk(void* to, const void* from) {
  memcpy(to, __builtin_assume_aligned(from, 16), 16);
}
MHLA_HOST_DEVICE inline void store_chunk(void* to, const void* from) {
  memcpy(__builtin_assume_aligned(to, 16), from, 16);
}

}  // namespace cuda

MHLA_NAMESPACE_END
