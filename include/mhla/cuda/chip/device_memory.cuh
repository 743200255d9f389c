// SPDX-License-Identifier: MIT
// CUDA's errors as exceptions, device properties, and whether CUDA knows the memory that a call is
// given: a kernel that dereferences a host address ends in a sticky error. These queries start no
// work and do not wait for any, so that they are allowed during stream capture.
#pragma once

#include <cuda_runtime_api.h>

#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Whether a status means that the program has no code for the device.
inline bool lacks_code(cudaError_t status) {
  return status == cudaErrorNoKernelImageForDevice || status == cudaErrorUnsupportedPtxVersion ||
         status == cudaErrorInvalidDeviceFunction;
}

/// What to do about that.
inline std::string advice_on_code() {
  int device = 0;
  int major = 0;
  int minor = 0;
  std::string chip = "the compute capability of the device";
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess)
    chip = joined({"compute capability ", major, ".", minor, ", which device ", device, " has"});
  return "; the .cu with MHLA_INSTANTIATE_CUDA has to be compiled for " + chip +
         " (CMAKE_CUDA_ARCHITECTURES, or nvcc's -gencode)";
}

/// Clears the error that a failed call also leaves for cudaGetLastError.
inline void take_back(cudaError_t status) {
  if (cudaPeekAtLastError() == status) cudaGetLastError();
}

/// Throws the error of a CUDA call, and clears it, since the caller has the exception.
[[gnu::__noreturn__]] inline void throw_cuda_error(cudaError_t status, const std::string& what) {
  take_back(status);
  throw CudaError({"mhla: ", what, ": ", cudaGetErrorString(status),
                   (lacks_code(status) ? advice_on_code() : std::string())});
}

/// Throws unless a call succeeded; `what` names what failed.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw_cuda_error(status, what);
}

/// Throws if a kernel cannot be launched.
inline void check_launch(cudaError_t status) {
  check_cuda(status, "a kernel could not be launched");
}

/// Bytes of shared memory that a thread block may use on the current device; `otherwise` if there
/// is no device.
inline Index shared_bytes_of_device(Index otherwise) {
  int device = 0;
  int bytes = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (status == cudaSuccess) return bytes;
  take_back(status);
  return otherwise;
}

/// Sets a kernel up for shared memory: always for as much as the device has, so that threads with
/// calls of other sizes do not lower it for each other. Of an SM's memory all of them prefer the
/// share with the least L1, which the planned thread blocks need: an SM changes its share only
/// while it runs nothing, so that no kernel could start early.
inline void give_shared_memory(const void* kernel, int bytes) {
  const Index most = shared_bytes_of_device(bytes);
  if (bytes > most)
    throw CudaError({"mhla: a kernel needs ", bytes,
                     " bytes of shared memory, of which the device ", "has ", most,
                     " for a thread block"});
  check_launch(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(most)));
  check_launch(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
}

/// Throws CudaError unless CUDA knows the memory at an address.
inline void require_device_memory(const void* address, const char* name) {
  cudaPointerAttributes attributes{};  // of no address: unregistered
  const cudaError_t status =
      address == nullptr ? cudaSuccess : cudaPointerGetAttributes(&attributes, address);
  if (status != cudaSuccess)
    throw_cuda_error(status, std::string(name) + ": cudaPointerGetAttributes failed");
  if (attributes.type == cudaMemoryTypeUnregistered)
    throw CudaError({"mhla: ", name,
                     ": the address is not in memory that CUDA knows: a CudaDevice takes device "
                     "memory (cudaMalloc), managed, or registered host memory"});
}

/// Checks arrays and tensors, which need no memory if they are empty.
template <class T>
void require_device_memory(const Span<T>& array, const char* name) {
  if (array.size > 0) require_device_memory(array.data, name);
}
template <class T, int Rank>
void require_device_memory(const TensorView<T, Rank>& tensor, const char* name) {
  if (tensor.size() > 0) require_device_memory(tensor.data, name);
}
inline void require_device_memory(const Footprint& memory) {
  memory.for_each_on_device([](const overlap::Strided& view, const char* name) {
    if (view.size > 0) require_device_memory(view.data, name);
  });
}

}  // namespace cuda

MHLA_NAMESPACE_END
