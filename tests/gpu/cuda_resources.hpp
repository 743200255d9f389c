// SPDX-License-Identifier: MIT
// Streams, cuBLAS handles and graphs that release themselves, and CUDA's errors as exceptions: what
// programs on a GPU need beside the library, which owns nothing.
#pragma once

#include <cuda_runtime_api.h>
// After it.
#include <cublas_v2.h>

#include <mhla/core/workspace.hpp>
#include <mhla/cuda/device.hpp>
#include <stdexcept>
#include <string>

namespace gpu {

/// What a program exits with that found no GPU: ctest counts it as skipped.
inline constexpr int exit_without_gpu = 77;

inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}
inline void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string(call) + ": " + cublasGetStatusString(status));
}

/// Why nothing can run here; empty where something can.
inline std::string why_no_gpu() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return devices == 0 ? "CUDA finds no device" : "";
}

inline std::string device_name() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return properties.name;
}

/// A stream that does not wait for the default one.
class Stream {
 public:
  Stream() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  operator cudaStream_t() const { return stream_; }  // NOLINT: stands for its handle

 private:
  cudaStream_t stream_ = nullptr;
};

class Cublas {
 public:
  Cublas() { check(cublasCreate(&handle_), "cublasCreate"); }
  ~Cublas() { cublasDestroy(handle_); }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  operator cublasHandle_t() const { return handle_; }  // NOLINT: stands for its handle

 private:
  cublasHandle_t handle_ = nullptr;
};

/// A stream and a handle of its own.
struct Lane {
  Stream stream;
  Cublas cublas;

  mhla::CudaDevice device(mhla::FloatProducts products = mhla::FloatProducts::exact) const {
    return {stream, cublas, mhla::WorkspaceView{}, products};
  }
  mhla::CudaDevice device(mhla::CudaPath path) const {
    return {stream, cublas, mhla::WorkspaceView{}, mhla::FloatProducts::exact, path};
  }
};

/// Whether work on a stream can be recorded.
inline bool can_capture(cudaStream_t stream) {
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return false;
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphDestroy(graph);
  return true;
}

/// What `work` puts on a stream, recorded, to be run any number of times.
class Graph {
 public:
  template <class Work>
  Graph(cudaStream_t stream, const Work& work) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph_);
      destroy();
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() { destroy(); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cudaStream_t stream) const {
    check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  void destroy() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace gpu
