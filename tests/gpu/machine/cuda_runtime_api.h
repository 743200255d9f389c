// SPDX-License-Identifier: MIT
// In place of CUDA's header: what the programs for a GPU call, on host memory, so that they run
// where there is none. Work is done when it is asked for; streams cannot be recorded.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "../../cuda/machine/cuda_runtime_api.h"

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
inline constexpr unsigned cudaStreamNonBlocking = 1;

inline cudaError_t cudaGetDeviceCount(int* devices) {
  *devices = 1;
  return cudaSuccess;
}

struct cudaDeviceProp {
  char name[256];
};
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "none: host memory");
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  stand_in::Runtime& runtime = stand_in::runtime();
  runtime.allocates = true;
  const std::size_t whole = (bytes + 255) / 256 * 256;
  const bool fits = bytes < std::size_t{1} << 40;  // as no GPU has; sanitizers abort at it
  *memory = fits ? std::aligned_alloc(256, whole) : nullptr;
  if (*memory == nullptr) return runtime.leave(cudaErrorMemoryAllocation);
  runtime.allocated.push_back({*memory, whole});
  return cudaSuccess;
}
inline constexpr unsigned cudaMemAttachGlobal = 1;
inline cudaError_t cudaMallocManaged(void** memory, std::size_t bytes,
                                     unsigned = cudaMemAttachGlobal) {
  return cudaMalloc(memory, bytes);
}
inline cudaError_t cudaFree(void* memory) {
  std::vector<stand_in::AddressRange>& allocated = stand_in::runtime().allocated;
  for (std::size_t i = 0; i < allocated.size(); ++i)
    if (allocated[i].begin == memory) {
      allocated.erase(allocated.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = static_cast<cudaStream_t>(std::malloc(1));
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::free(stream);
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, std::uint64_t) {
  return cudaErrorNotSupported;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaErrorNotSupported; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
inline cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }

inline cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
