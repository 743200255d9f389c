// SPDX-License-Identifier: MIT
// In place of NCCL's header, and of what it includes of CUDA's runtime: the calls that
// mhla/nccl.hpp makes, with their documented meaning, where ranks are threads of one process and
// streams do what was enqueued when they are asked. A test says what fails, and asks afterwards
// what was called.
#pragma once

#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

enum cudaError_t { cudaSuccess = 0, cudaErrorNotReady = 600, cudaErrorIllegalAddress = 700 };
enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclDataType_t { ncclInt8 = 0, ncclUint8 = 1 };

struct ncclComm;
using ncclComm_t = ncclComm*;

namespace stand_in {

enum class Kind { message, broadcast };

/// What has been sent and not yet received.
struct Fabric {
  std::mutex mutex;
  std::map<std::tuple<Kind, int, int>, std::deque<std::vector<std::byte>>> boxes;

  void put(Kind kind, int from, int to, const void* data, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(data);
    const std::lock_guard<std::mutex> lock(mutex);
    boxes[{kind, from, to}].emplace_back(first, first + bytes);
  }
  bool take(Kind kind, int from, int to, std::vector<std::byte>& bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    auto& box = boxes[{kind, from, to}];
    if (box.empty()) return false;
    bytes = std::move(box.front());
    box.pop_front();
    return true;
  }
};

/// What is enqueued: bytes that go to a rank or come from it.
struct Operation {
  ncclComm_t communicator;
  struct CUstream_st* stream;
  Kind kind;
  bool sends;
  int peer;
  const void* from;
  void* to;
  std::size_t bytes;
};

/// The group that a thread has open.
inline thread_local int depth = 0;
inline thread_local std::vector<Operation> group;
inline thread_local cudaError_t last_error = cudaSuccess;

struct CUstream_st {
  std::deque<Operation> pending;
  cudaError_t fails_with = cudaSuccess;
};

}  // namespace stand_in

using cudaStream_t = stand_in::CUstream_st*;

struct ncclComm {
  stand_in::Fabric* fabric = nullptr;
  int rank = 0;
  int size = 1;
  // What a test wants.
  std::string refused = {};  // the call that fails
  ncclResult_t refuse_with = ncclSuccess;
  ncclResult_t async_error = ncclSuccess;
  int in_progress = 0;  // times that a non-blocking communicator is asked before it has enqueued
  // What it asks afterwards.
  std::map<std::string, int> calls = {};
  bool aborted = false;
  bool used_after_abort = false;
  std::vector<stand_in::Operation> waiting = {};

  ncclResult_t called(const char* name) {
    ++calls[name];
    used_after_abort = used_after_abort || aborted;
    return refused == name ? refuse_with : ncclSuccess;
  }
};

inline const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaSuccess         ? "no error"
         : status == cudaErrorNotReady ? "device not ready"
                                       : "an illegal memory access was encountered";
}
inline cudaError_t cudaPeekAtLastError() { return stand_in::last_error; }
inline cudaError_t cudaGetLastError() { return std::exchange(stand_in::last_error, cudaSuccess); }

// Memory is a device's if cudaMalloc gave it, or if a test says so of all that is not.
enum cudaMemoryType {
  cudaMemoryTypeUnregistered = 0,
  cudaMemoryTypeHost = 1,
  cudaMemoryTypeDevice = 2,
  cudaMemoryTypeManaged = 3
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
struct cudaPointerAttributes {
  cudaMemoryType type;
};
namespace stand_in {
struct DeviceMemory {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> allocated;  // bytes after an address
  bool is_all = true;
  int copies = 0;

  bool has(const void* memory) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto* const byte = static_cast<const std::byte*>(memory);
    auto next = allocated.upper_bound(byte);
    return next != allocated.begin() && (--next, byte < next->first + next->second);
  }
};
inline DeviceMemory device_memory;
}  // namespace stand_in
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  const bool device = stand_in::device_memory.is_all || stand_in::device_memory.has(memory);
  attributes->type = device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}
inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  const std::lock_guard<std::mutex> lock(stand_in::device_memory.mutex);
  *memory = new std::byte[bytes];
  stand_in::device_memory.allocated[static_cast<std::byte*>(*memory)] = bytes;
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  const std::lock_guard<std::mutex> lock(stand_in::device_memory.mutex);
  stand_in::device_memory.allocated.erase(static_cast<std::byte*>(memory));
  delete[] static_cast<std::byte*>(memory);
  return cudaSuccess;
}
/// Copies nothing from memory that is not where the kind says.
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes,
                                   cudaMemcpyKind kind, cudaStream_t stream) {
  const bool down = kind == cudaMemcpyDeviceToHost;
  if (!stream->pending.empty() || !stand_in::device_memory.has(down ? from : to) ||
      stand_in::device_memory.has(down ? to : from))
    return stand_in::last_error = cudaErrorIllegalAddress;
  std::memcpy(to, from, bytes);
  const std::lock_guard<std::mutex> lock(stand_in::device_memory.mutex);
  ++stand_in::device_memory.copies;
  return cudaSuccess;
}

inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const auto leave = [](cudaError_t status) { return stand_in::last_error = status; };
  if (stream->fails_with != cudaSuccess) return leave(stream->fails_with);
  while (!stream->pending.empty()) {
    const stand_in::Operation& next = stream->pending.front();
    ncclComm& of = *next.communicator;
    if (next.sends) {
      of.fabric->put(next.kind, of.rank, next.peer, next.from, next.bytes);
    } else {
      std::vector<std::byte> bytes;
      if (!of.fabric->take(next.kind, next.peer, of.rank, bytes)) return leave(cudaErrorNotReady);
      if (bytes.size() != next.bytes) of.async_error = ncclInvalidUsage;
      std::memcpy(next.to, bytes.data(), bytes.size() < next.bytes ? bytes.size() : next.bytes);
    }
    stream->pending.pop_front();
  }
  return cudaSuccess;
}

inline const char* ncclGetErrorString(ncclResult_t status) {
  switch (status) {
    case ncclSuccess:
      return "no error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "another error";
  }
}
inline const char* ncclGetLastError(ncclComm_t communicator) {
  return communicator->called("ncclGetLastError") == ncclSuccess ? "its own words" : "";
}
inline ncclResult_t ncclCommCount(const ncclComm_t communicator, int* count) {
  *count = communicator->size;
  return communicator->called("ncclCommCount");
}
inline ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
  *rank = communicator->rank;
  return communicator->called("ncclCommUserRank");
}
inline ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  communicator->called("ncclCommAbort");
  communicator->aborted = true;
  return ncclSuccess;
}

namespace stand_in {

inline void enqueue(std::vector<Operation>& operations) {
  // What a rank sends goes out before it waits for others.
  for (const bool sends : {true, false})
    for (const Operation& operation : operations)
      if (operation.sends == sends) operation.stream->pending.push_back(operation);
  operations.clear();
}

}  // namespace stand_in

inline ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  const ncclResult_t status = communicator->called("ncclCommGetAsyncError");
  *state = communicator->async_error;
  if (*state != ncclSuccess) return status;
  if (communicator->in_progress > 0 && --communicator->in_progress > 0) {
    *state = ncclInProgress;
  } else {
    stand_in::enqueue(communicator->waiting);
  }
  return status;
}
inline ncclResult_t ncclGroupStart() {
  ++stand_in::depth;
  return ncclSuccess;
}
inline ncclResult_t ncclGroupEnd() {
  if (stand_in::depth == 0) return ncclInvalidUsage;
  if (--stand_in::depth > 0 || stand_in::group.empty()) return ncclSuccess;
  ncclComm& communicator = *stand_in::group.front().communicator;
  const ncclResult_t status = communicator.called("ncclGroupEnd");
  if (communicator.in_progress > 0) {
    communicator.waiting = std::exchange(stand_in::group, {});
    return ncclInProgress;
  }
  stand_in::enqueue(stand_in::group);
  return status;
}

namespace stand_in {

inline ncclResult_t post(const char* name, const Operation& operation, ncclDataType_t type) {
  const ncclResult_t status = operation.communicator->called(name);
  if (status != ncclSuccess) return status;
  if (type != ncclUint8 || operation.bytes == 0) return ncclInvalidArgument;
  if (depth == 0) return ncclInvalidUsage;  // it could wait for one that is not enqueued yet
  group.push_back(operation);
  return ncclSuccess;
}

}  // namespace stand_in

inline ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                             ncclComm_t communicator, cudaStream_t stream) {
  return stand_in::post(
      "ncclSend", {communicator, stream, stand_in::Kind::message, true, peer, from, nullptr, count},
      type);
}
inline ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer,
                             ncclComm_t communicator, cudaStream_t stream) {
  return stand_in::post(
      "ncclRecv", {communicator, stream, stand_in::Kind::message, false, peer, nullptr, to, count},
      type);
}
inline ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count,
                                  ncclDataType_t type, int root, ncclComm_t communicator,
                                  cudaStream_t stream) {
  const int rank = communicator->rank;
  if (rank != root)
    return stand_in::post(
        "ncclBroadcast",
        {communicator, stream, stand_in::Kind::broadcast, false, root, nullptr, to, count}, type);
  ncclResult_t status = ncclSuccess;
  for (int peer = 0; peer < communicator->size && status == ncclSuccess; ++peer)
    status = stand_in::post(
        "ncclBroadcast",
        {communicator, stream, stand_in::Kind::broadcast, true, peer, from, nullptr, count}, type);
  // To itself, too.
  return status != ncclSuccess ? status
                               : stand_in::post("ncclBroadcast",
                                                {communicator, stream, stand_in::Kind::broadcast,
                                                 false, root, nullptr, to, count},
                                                type);
}
inline ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count,
                                  ncclDataType_t type, ncclComm_t communicator,
                                  cudaStream_t stream) {
  const ncclResult_t refused = communicator->called("ncclAllGather");
  if (refused != ncclSuccess) return refused;
  ncclGroupStart();
  for (int root = 0; root < communicator->size; ++root)
    ncclBroadcast(from, static_cast<std::byte*>(to) + static_cast<std::size_t>(root) * count, count,
                  type, root, communicator, stream);
  return ncclGroupEnd();
}
