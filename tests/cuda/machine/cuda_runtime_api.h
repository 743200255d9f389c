// SPDX-License-Identifier: MIT
// In place of CUDA's header: what the library asks of CUDA's runtime besides launches. A test says
// which memory CUDA does not know, which calls fail, and what the device is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cublas_v2.h"
#include "emulation/address_range.hpp"

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorNotSupported = 801
};
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3
};
enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaSharedCarveout { cudaSharedmemCarveoutMaxShared = 100 };
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
};

namespace stand_in {

/// The runtime of the one thread that there is. All memory is known to it, save nullptr and what is
/// said to be unknown; where it allocates itself, nothing but that.
struct Runtime {
  std::vector<AddressRange> unknown;
  std::vector<AddressRange> allocated;
  bool allocates = false;
  cudaMemoryType type = cudaMemoryTypeDevice;  // of what is known
  cudaError_t refuse_pointers_with = cudaSuccess;
  cudaError_t refuse_device_with = cudaSuccess;
  int device = 0, major = 9, minor = 0;
  int shared_bytes = 227 * 1024;  // that a thread block may have
  /// Of kernels.
  std::map<std::pair<const void*, cudaFuncAttribute>, int> attributes;
  cudaError_t last_error = cudaSuccess;
  long questions = 0;  // about pointers

  bool knows(const void* address) const {
    return address != nullptr && !any_holds(unknown, address) &&
           (!allocates || any_holds(allocated, address));
  }
  cudaError_t leave(cudaError_t status) {
    if (status != cudaSuccess) last_error = status;
    return status;
  }
};
inline Runtime& runtime() {
  static Runtime runtime;
  return runtime;
}

}  // namespace stand_in

inline const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorUnsupportedPtxVersion:
      return "the provided PTX was compiled with an unsupported toolchain.";
    case cudaErrorNotSupported:
      return "operation not supported";
  }
  return "unrecognized error code";
}
inline cudaError_t cudaPeekAtLastError() { return stand_in::runtime().last_error; }
inline cudaError_t cudaGetLastError() {
  const cudaError_t last = stand_in::runtime().last_error;
  stand_in::runtime().last_error = cudaSuccess;
  return last;
}

inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                            const void* address) {
  stand_in::Runtime& runtime = stand_in::runtime();
  ++runtime.questions;
  if (runtime.refuse_pointers_with != cudaSuccess)
    return runtime.leave(runtime.refuse_pointers_with);
  void* const same = const_cast<void*>(address);
  *attributes = runtime.knows(address)
                    ? cudaPointerAttributes{runtime.type, runtime.device, same, nullptr}
                    : cudaPointerAttributes{cudaMemoryTypeUnregistered, -1, nullptr, same};
  return cudaSuccess;
}

inline cudaError_t cudaGetDevice(int* device) {
  stand_in::Runtime& runtime = stand_in::runtime();
  if (runtime.refuse_device_with != cudaSuccess) return runtime.leave(runtime.refuse_device_with);
  *device = runtime.device;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  stand_in::Runtime& runtime = stand_in::runtime();
  if (device != runtime.device) return runtime.leave(cudaErrorInvalidValue);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = runtime.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = runtime.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = runtime.shared_bytes;
      break;
  }
  return cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute,
                                        int value) {
  stand_in::Runtime& runtime = stand_in::runtime();
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > runtime.shared_bytes)
    return runtime.leave(cudaErrorInvalidValue);
  runtime.attributes[{kernel, attribute}] = value;
  return cudaSuccess;
}
