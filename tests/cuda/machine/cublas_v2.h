// SPDX-License-Identifier: MIT
// In place of cuBLAS' header: the calls that the library makes, with their documented meaning
// (column-major matrices, leading dimensions, strides, transposes, compute type, beta), on the CPU
// and in double. A handle also stands for the machine as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulation/address_range.hpp"

struct CUstream_st;
using cudaStream_t = CUstream_st*;

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS = 0,
  CUBLAS_STATUS_NOT_INITIALIZED = 1,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasPointerMode_t { CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE };
enum cublasMath_t {
  CUBLAS_DEFAULT_MATH = 0,
  CUBLAS_PEDANTIC_MATH = 2,
  CUBLAS_TF32_TENSOR_OP_MATH = 3
};
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_64F = 1 };
enum cublasComputeType_t {
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_32F_PEDANTIC = 69,
  CUBLAS_COMPUTE_64F = 70,
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77
};
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1 };

namespace stand_in {

/// What may still be under way when the next kernel of machine::run() begins.
enum class UnderWay {
  last_kernel,  // and the products after it
  anything,     // of the caller's: the kernel is the first of a call
  nothing       // that it or the kernels after it have to do with
};

}  // namespace stand_in

struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  void* workspace = nullptr;
  std::size_t workspace_size = 0;

  // What a test wants of the next products.
  cublasStatus_t refuse_with = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t refuse_workspace_with = CUBLAS_STATUS_SUCCESS;
  long refused_launch = -1;  // fails: the one after so many

  // What kernels have to wait for.
  stand_in::UnderWay under_way = stand_in::UnderWay::last_kernel;
  std::vector<stand_in::AddressRange> written_since_kernel = {};  // by products, or their like

  // What the tests ask afterwards.
  long launches = 0;
  long products = 0;
  // Of global memory, by kernels that machine::run() runs.
  std::vector<stand_in::Watched> watched = {};
  std::uint64_t kernel_bytes_read = 0;
  std::uint64_t kernel_bytes_written = 0;
  std::uint64_t last_kernel_bytes_read = 0;
  std::uint64_t last_kernel_bytes_written = 0;
  std::uint64_t last_kernel_bytes_read_early = 0;  // before it has waited for earlier kernels
  cublasComputeType_t last_compute = CUBLAS_COMPUTE_32F;
  cublasMath_t last_math_mode = CUBLAS_DEFAULT_MATH;
  cudaStream_t last_stream = nullptr;         // of a product
  cudaStream_t last_launch_stream = nullptr;  // of a kernel
  std::size_t last_workspace_size = 0;
  std::uint64_t seed = 1;

  std::uint64_t next_random() {  // Knuth's linear congruential generator, its upper half
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
  }
};
using cublasHandle_t = cublasContext*;

inline const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an invalid value";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the execution failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "not supported";
  }
  return "unknown";
}
inline cublasStatus_t cublasGetStream(cublasHandle_t handle, cudaStream_t* stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  *stream = handle->stream;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  handle->workspace = nullptr;  // "unconditionally resets the workspace to the default one"
  handle->workspace_size = 0;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, std::size_t size) {
  if (handle->refuse_workspace_with != CUBLAS_STATUS_SUCCESS) return handle->refuse_workspace_with;
  if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  handle->workspace = workspace;
  handle->workspace_size = size;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasGetPointerMode(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = handle->pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetPointerMode(cublasHandle_t handle, cublasPointerMode_t mode) {
  handle->pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  *mode = handle->math_mode;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  handle->math_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType_t type_a,
                                          int lda, long long stride_a, const void* b,
                                          cudaDataType_t type_b, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType_t type_c, int ldc,
                                          long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t);
