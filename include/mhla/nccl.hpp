// SPDX-License-Identifier: MIT
/// \file
/// NCCL as a Communicator. Needs `<nccl.h>`, which mhla does not install; link libnccl and the CUDA
/// runtime.
#pragma once

#include <nccl.h>

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/distributed/communicator.hpp>
#include <thread>
#include <utility>

MHLA_NAMESPACE_BEGIN

/// \ingroup distributed
/// A communicator and a stream of the caller's, both borrowed, on memory of the communicator's
/// device, which is the current one in every call. Calls come from one thread at a time. Messages
/// in host memory, as those by which ranks agree, go through device memory that is allocated when
/// they are first sent.
///
/// A collective is enqueued as one group: ncclAllGather where parts are equal and lie side by side,
/// otherwise ncclBroadcast for each rank; ncclSend and ncclRecv. The call returns when the stream
/// has done it, so that nothing overlaps it, and it cannot be captured in a graph. Where NCCL or
/// CUDA fails, or the stream is not done in `timeout`, the communicator is aborted, which frees it
/// (ncclCommAbort), and CommunicationError is thrown: it is neither used nor destroyed any more.
///
/// NCCL connects ranks when they first send: ncclCommInitRankConfig with `blocking = 0` makes that,
/// too, something that ends in time.
class NcclCommunicator {
 public:
  /// A rank that does not answer for `timeout` is given up, so it is longer than ranks'
  /// computations differ, those included that the stream has yet to do. \throws CommunicationError.
  explicit NcclCommunicator(ncclComm_t communicator, cudaStream_t stream,
                            std::chrono::milliseconds timeout = std::chrono::seconds(60))
      : communicator_(communicator),
        stream_(stream),
        timeout_((std::min)(timeout, longest_timeout)) {
    require_success(ncclCommCount(communicator_, &size_), "ncclCommCount");
    require_success(ncclCommUserRank(communicator_, &rank_), "ncclCommUserRank");
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  ~NcclCommunicator() { cudaFree(staging_); }

  /// This process, or thread.
  Index rank() const { return rank_; }
  /// All of them.
  Index size() const { return size_; }

  /// See Communicator.
  void all_gather(const void* sent, void* received, Span<const Part> parts) const {
    through_device(sent, parts[rank_].bytes, received, parts,
                   [&](const void* source, void* into) { gather(source, into, parts); });
  }
  /// See Communicator.
  void all_to_all(const void* sent, Span<const Part> to, void* received,
                  Span<const Part> from) const {
    through_device(sent, end_of(to), received, from,
                   [&](const void* source, void* into) { exchange(source, to, into, from); });
  }

 private:
  void gather(const void* sent, void* received, Span<const Part> parts) const {
    auto* const in = static_cast<std::byte*>(received);
    const Part first = parts[0];
    bool equal = true;
    for (Index r = 0; r < size_; ++r)
      equal =
          equal && parts[r].bytes == first.bytes && parts[r].first == first.first + r * first.bytes;
    run("all_gather", [&](const auto& post) {
      if (equal && first.bytes > 0)
        return post("ncclAllGather", ncclAllGather(sent, in + first.first, count(first.bytes),
                                                   ncclUint8, communicator_, stream_));
      for (int r = 0; r < size_; ++r)
        if (parts[r].bytes > 0) {
          std::byte* const to = in + parts[r].first;
          post("ncclBroadcast", ncclBroadcast(r == rank_ ? sent : to, to, count(parts[r].bytes),
                                              ncclUint8, r, communicator_, stream_));
        }
    });
  }

  void exchange(const void* sent, Span<const Part> to, void* received,
                Span<const Part> from) const {
    const auto* const out = static_cast<const std::byte*>(sent);
    auto* const in = static_cast<std::byte*>(received);
    run("all_to_all", [&](const auto& post) {  // a rank's own part, too
      for (int r = 0; r < size_; ++r) {
        if (to[r].bytes > 0)
          post("ncclSend", ncclSend(out + to[r].first, count(to[r].bytes), ncclUint8, r,
                                    communicator_, stream_));
        if (from[r].bytes > 0)
          post("ncclRecv", ncclRecv(in + from[r].first, count(from[r].bytes), ncclUint8, r,
                                    communicator_, stream_));
      }
    });
  }

  static std::size_t count(Index bytes) { return static_cast<std::size_t>(bytes); }

  // Whether the device cannot reach it.
  bool is_on_host(const void* memory) const {
    cudaPointerAttributes attributes{};
    if (memory == nullptr) return false;
    if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
      cudaGetLastError();  // of an address that CUDA does not know
      return true;
    }
    return attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged;
  }
  static Index end_of(Span<const Part> parts) {
    Index end = 0;
    for (const Part& part : parts) end = (std::max)(end, part.first + part.bytes);
    return end;
  }
  // run(sent, received) on device memory, whatever a message lies in.
  template <class Run>
  void through_device(const void* sent, Index sent_bytes, void* received, Span<const Part> from,
                      const Run& run) const {
    const bool sends = is_on_host(sent) && sent_bytes > 0;
    const bool receives = is_on_host(received) && end_of(from) > 0;
    if (!sends && !receives) return run(sent, received);
    const Index out_bytes = sends ? sent_bytes : 0;
    std::byte* const out = reserve(out_bytes + (receives ? end_of(from) : 0));
    std::byte* const in = out + out_bytes;
    if (sends)
      require_success(cudaMemcpyAsync(out, sent, count(out_bytes), cudaMemcpyHostToDevice, stream_),
                      "cudaMemcpyAsync");
    run(sends ? out : sent, receives ? in : received);
    if (!receives) return;
    for (const Part& part : from)
      if (part.bytes > 0)
        require_success(
            cudaMemcpyAsync(static_cast<std::byte*>(received) + part.first, in + part.first,
                            count(part.bytes), cudaMemcpyDeviceToHost, stream_),
            "cudaMemcpyAsync");
    wait("a copy from the device");
  }
  std::byte* reserve(Index bytes) const {
    if (bytes <= staged_) return staging_;
    cudaFree(std::exchange(staging_, nullptr));
    staged_ = 0;
    void* memory = nullptr;
    require_success(cudaMalloc(&memory, count(bytes)), "cudaMalloc");
    staging_ = static_cast<std::byte*>(memory);
    staged_ = bytes;
    return staging_;
  }

  // enqueue(post) posts all of a collective: post(call, status) for each of its calls.
  template <class Enqueue>
  void run(const char* collective, const Enqueue& enqueue) const {
    if (failed_) fail(collective, "the communicator was aborted when an earlier call failed");
    require_success(ncclGroupStart(), "ncclGroupStart");
    ncclResult_t failure = ncclSuccess;
    const char* failed = nullptr;
    enqueue([&](const char* call, ncclResult_t status) {
      if (failed == nullptr && !accepted(status)) failure = status, failed = call;
    });
    const ncclResult_t ended = ncclGroupEnd();  // in any case: calls after it are others'
    if (failed != nullptr) require_success(failure, failed);
    require_success(ended, "ncclGroupEnd");
    wait(collective);
  }

  void wait(const char* collective) const {
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    while (true) {
      ncclResult_t state = ncclSuccess;
      require_success(ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError");
      require_success(state, collective);
      if (state == ncclSuccess) {  // otherwise the stream does not have all of it yet
        const cudaError_t status = cudaStreamQuery(stream_);
        if (status == cudaSuccess) return;
        if (cudaPeekAtLastError() == status) cudaGetLastError();  // which a query leaves
        if (status != cudaErrorNotReady) fail(collective, cudaGetErrorString(status));
      }
      if (std::chrono::steady_clock::now() > deadline)
        fail(collective, joined({"it has waited ", timeout_.count(),
                                 " ms for a rank that has ended or is busy with something else"}));
      std::this_thread::yield();
    }
  }

  static bool accepted(ncclResult_t status) {
    return status == ncclSuccess || status == ncclInProgress;
  }
  void require_success(ncclResult_t status, const char* call) const {
    if (accepted(status)) return;
    const char* const details = failed_ ? nullptr : ncclGetLastError(communicator_);
    fail(call, std::string(ncclGetErrorString(status)) +
                   (details == nullptr || *details == 0 ? "" : std::string(": ") + details));
  }
  void require_success(cudaError_t status, const char* call) const {
    if (status == cudaSuccess) return;
    if (cudaPeekAtLastError() == status) cudaGetLastError();
    fail(call, cudaGetErrorString(status));
  }
  [[gnu::__noreturn__]] void fail(const char* call, const std::string& why) const {
    if (!failed_) ncclCommAbort(communicator_);
    failed_ = true;
    throw CommunicationError({"mhla: rank ", rank_, " of ", size_, ": ", call, ": ", why,
                              "; the communicator cannot be used any more"});
  }

  ncclComm_t communicator_;
  cudaStream_t stream_;
  std::chrono::milliseconds timeout_;
  int rank_ = 0;
  int size_ = 1;
  mutable bool failed_ = false;
  mutable std::byte* staging_ = nullptr;  // device memory of messages that lie on the host
  mutable Index staged_ = 0;
};

MHLA_NAMESPACE_END
