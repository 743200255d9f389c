// SPDX-License-Identifier: MIT
// In place of cuBLAS' header: the calls that the library makes, with their documented meaning
// (column-major matrices, leading dimensions, strides, transposes, compute type, beta), on the CPU
// and in double. A handle also stands for the machine as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
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
  last_kernel,  // and the products behind it
  anything,     // of the caller's: the kernel is the first of a call
  nothing       // that it or the kernels behind it have to do with
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
  // Of global memory, by kernels that machine::run() runs: by all, by the last one.
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

namespace stand_in {

/// Element (row, col) of op(matrix) lies at row * row_step + col * col_step.
struct Steps {
  std::ptrdiff_t row;
  std::ptrdiff_t col;

  Steps(cublasOperation_t op, int leading)
      : row(op == CUBLAS_OP_N ? 1 : leading), col(op == CUBLAS_OP_N ? leading : 1) {}
};

template <class T>
void multiply(cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const T* alpha,
              const T* a, int lda, long long stride_a, const T* b, int ldb, long long stride_b,
              const T* beta, T* c, int ldc, long long stride_c, int batch) {
  const Steps of_a(op_a, lda);
  const Steps of_b(op_b, ldb);
  for (int i = 0; i < batch; ++i, a += stride_a, b += stride_b, c += stride_c)
    for (int col = 0; col < n; ++col)
      for (int row = 0; row < m; ++row) {
        const T* x = a + row * of_a.row;
        const T* y = b + col * of_b.col;
        double sum = 0;
        for (int l = 0; l < k; ++l, x += of_a.col, y += of_b.row)
          sum += static_cast<double>(*x) * static_cast<double>(*y);
        T& to = c[row + static_cast<std::ptrdiff_t>(col) * ldc];
        const double product = static_cast<double>(*alpha) * sum;
        // "If beta is zero, C does not have to be a valid input."
        to = static_cast<T>(*beta == T(0)
                                ? product
                                : product + static_cast<double>(*beta) * static_cast<double>(to));
      }
}

}  // namespace stand_in

inline cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
    const void* alpha, const void* a, cudaDataType_t type_a, int lda, long long stride_a,
    const void* b, cudaDataType_t type_b, int ldb, long long stride_b, const void* beta, void* c,
    cudaDataType_t type_c, int ldc, long long stride_c, int batch, cublasComputeType_t compute,
    cublasGemmAlgo_t) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const auto at_least = [](int leading, int rows) { return leading >= (rows > 1 ? rows : 1); };
  if (m < 0 || n < 0 || k < 0 || batch < 0 || !at_least(lda, op_a == CUBLAS_OP_N ? m : k) ||
      !at_least(ldb, op_b == CUBLAS_OP_N ? k : n) || !at_least(ldc, m) ||
      handle->pointer_mode != CUBLAS_POINTER_MODE_HOST || alpha == nullptr || beta == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool is_double = compute == CUBLAS_COMPUTE_64F;
  const cudaDataType_t type = is_double ? CUDA_R_64F : CUDA_R_32F;
  if (type_a != type || type_b != type || type_c != type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (handle->refuse_with != CUBLAS_STATUS_SUCCESS) return handle->refuse_with;
  ++handle->products;
  handle->last_compute = compute;
  handle->last_math_mode = handle->math_mode;
  handle->last_stream = handle->stream;
  handle->last_workspace_size = handle->workspace_size;
  if (m > 0 && n > 0 && batch > 0) {  // from the first element to the last
    const auto elements = static_cast<std::size_t>(stride_c * (batch - 1) + m +
                                                   static_cast<long long>(ldc) * (n - 1));
    handle->written_since_kernel.push_back(
        {c, elements * (is_double ? sizeof(double) : sizeof(float))});
  }
  // The workspace is cuBLAS's own for as long as it is set.
  if (handle->workspace_size > 0) std::memset(handle->workspace, 0xff, handle->workspace_size);
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    stand_in::multiply(op_a, op_b, m, n, k, static_cast<const T*>(alpha), static_cast<const T*>(a),
                       lda, stride_a, static_cast<const T*>(b), ldb, stride_b,
                       static_cast<const T*>(beta), static_cast<T*>(c), ldc, stride_c, batch);
  };
  is_double ? run(0.0) : run(0.0f);
  return CUBLAS_STATUS_SUCCESS;
}
