// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "../cublas_v2.h"

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

/// Whether no element belongs to two columns of C, of whatever matrices: they are written at once.
bool disjoint(int m, int n, int ldc, long long stride_c, int batch) {
  std::vector<long long> begins;
  for (int i = 0; i < batch; ++i)
    for (int col = 0; col < n; ++col)
      begins.push_back(i * stride_c + static_cast<long long>(col) * ldc);
  std::sort(begins.begin(), begins.end());
  for (std::size_t i = 1; i < begins.size(); ++i)
    if (begins[i] - begins[i - 1] < m) return false;
  return true;
}

}  // namespace stand_in

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType_t type_a,
                                          int lda, long long stride_a, const void* b,
                                          cudaDataType_t type_b, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType_t type_c, int ldc,
                                          long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const auto at_least = [](int leading, int rows) { return leading >= (rows > 1 ? rows : 1); };
  if (m < 0 || n < 0 || k < 0 || batch < 0 || !at_least(lda, op_a == CUBLAS_OP_N ? m : k) ||
      !at_least(ldb, op_b == CUBLAS_OP_N ? k : n) || !at_least(ldc, m) ||
      !stand_in::disjoint(m, n, ldc, stride_c, batch) ||
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
