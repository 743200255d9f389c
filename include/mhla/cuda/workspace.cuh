// SPDX-License-Identifier: MIT
// Device memory that a program owns. Needs CUDA's runtime headers, in a .cpp, too.
#pragma once

#include <cuda_runtime_api.h>

#include <mhla/core/workspace.hpp>

MHLA_NAMESPACE_BEGIN

/// Scratch memory on the current device that the caller owns, for any number of calls on one
/// stream. mhla::forward_workspace_size and backward_workspace_size say how many bytes a call
/// takes.
/// \ingroup cuda
class CudaWorkspace {
 public:
  CudaWorkspace() = default;
  /// Allocates by cudaMalloc. \throws WorkspaceError if bytes < 0, CudaError.
  explicit CudaWorkspace(Index bytes) : size_(bytes) {
    if (bytes < 0) throw WorkspaceError("mhla: a workspace cannot have a negative size");
    if (bytes == 0) return;
    const cudaError_t status = cudaMalloc(&data_, static_cast<std::size_t>(bytes));
    if (status == cudaSuccess) return;
    (void)cudaGetLastError();  // the error is reported here
    throw CudaError({"mhla: cudaMalloc of ", bytes, " bytes: ", cudaGetErrorString(status)});
  }
  /// Empties the other.
  CudaWorkspace(CudaWorkspace&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  /// Swaps.
  CudaWorkspace& operator=(CudaWorkspace&& other) noexcept {
    (std::swap)(data_, other.data_);
    (std::swap)(size_, other.size_);
    return *this;
  }
  CudaWorkspace(const CudaWorkspace&) = delete;
  CudaWorkspace& operator=(const CudaWorkspace&) = delete;
  /// Waits for the device, as cudaFree does.
  ~CudaWorkspace() { (void)cudaFree(data_); }

  /// In bytes.
  Index size() const { return size_; }
  /// Borrowed.
  operator WorkspaceView() const { return {data_, size_}; }  // NOLINT: a workspace is a view of one

 private:
  void* data_ = nullptr;
  Index size_ = 0;
};

MHLA_NAMESPACE_END
