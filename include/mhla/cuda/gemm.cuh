// SPDX-License-Identifier: MIT
// All matrix products of the CUDA backend, by cuBLAS: batches of row-major matrices, which cuBLAS
// sees as their transposes. Named as in cpu/gemm.hpp.
#pragma once

#include <cublas_v2.h>

#include <limits>
#include <mhla/cuda/copies.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// `count` matrices of one size: element (n, r, c) lies at data[n * panel_stride + r * stride + c].
template <class A>
struct Panels {
  A* data = nullptr;
  Index count = 0;
  Index rows = 0;
  Index cols = 0;
  Index stride = 0;        // from row to row
  Index panel_stride = 0;  // from panel to panel; 0: one panel for all

  MHLA_HOST_DEVICE A* row(Index panel, Index r) const {
    return data + panel * panel_stride + r * stride;
  }
  MHLA_HOST_DEVICE Panels row_range(Index first, Index number) const {
    return {data + first * stride, count, number, cols, stride, panel_stride};
  }
  MHLA_HOST_DEVICE Panels column_range(Index first, Index number) const {
    return {data + first, count, rows, number, stride, panel_stride};
  }
};

/// Contiguous.
template <class A>
Panels<A> panels(A* data, Index count, Index rows, Index cols) {
  return {data, count, rows, cols, cols, rows * cols};
}

inline void check_cublas(cublasStatus_t status, const char* function) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw CudaError({"mhla: ", function, " failed: ", cublasGetStatusString(status)});
}

/// The caller's cuBLAS handle during a call; its settings are restored, also if the call throws.
class BorrowedCublas {
 public:
  BorrowedCublas(const CudaDevice& device, WorkspaceView workspace)
      : BorrowedCublas(device.cublas()) {
    // In this order: cublasSetStream resets the workspace.
    check_cublas(cublasSetStream(handle_, device.stream()), "cublasSetStream");
    check_cublas(
        cublasSetWorkspace(handle_, workspace.data, static_cast<std::size_t>(workspace.size)),
        "cublasSetWorkspace");
    check_cublas(cublasSetPointerMode(handle_, CUBLAS_POINTER_MODE_HOST), "cublasSetPointerMode");
    check_cublas(cublasSetMathMode(handle_, CUBLAS_DEFAULT_MATH), "cublasSetMathMode");
  }
  ~BorrowedCublas() {
    cublasSetMathMode(handle_, math_mode_);
    cublasSetPointerMode(handle_, pointer_mode_);
    cublasSetStream(handle_, stream_);
  }
  BorrowedCublas(const BorrowedCublas&) = delete;
  BorrowedCublas& operator=(const BorrowedCublas&) = delete;

 private:
  /// Saves the settings. An exception in the other constructor then runs the destructor.
  explicit BorrowedCublas(cublasHandle_t handle) : handle_(handle) {
    check_cublas(cublasGetStream(handle_, &stream_), "cublasGetStream");
    check_cublas(cublasGetPointerMode(handle_, &pointer_mode_), "cublasGetPointerMode");
    check_cublas(cublasGetMathMode(handle_, &math_mode_), "cublasGetMathMode");
  }

  cublasHandle_t handle_;
  cudaStream_t stream_ = nullptr;
  cublasPointerMode_t pointer_mode_ = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math_mode_ = CUBLAS_DEFAULT_MATH;
};

template <class A>
void set_zero(const CudaDevice& device, const Panels<A>& panels) {
  set_zero(device, TensorView<A, 3>{panels.data,
                                    {panels.count, panels.rows, panels.cols},
                                    {panels.panel_stride, panels.stride, 1}});
}
template <class A>
struct ClearArray {
  Span<A> array;
  Index step;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    for (; i < array.size; i += step) array[i] = A(0);
  }
};
template <class A>
void set_zero(const CudaDevice& device, const Span<A>& array) {
  const Index threads = ceil_div(array.size, Index{8});
  launch(device, threads, ClearArray<A>{array, threads});
}

namespace gemm {

inline int narrow(Index size) {
  if (size > (std::numeric_limits<int>::max)())
    throw ShapeError(
        {"mhla: a matrix of ", size, " rows or columns is more than cuBLAS can index"});
  return static_cast<int>(size);
}

// c (+)= op(a) op(b); `inner` is what both share. cuBLAS computes c^T = op(b)^T op(a)^T.
template <class A>
void multiply(const CudaDevice& device, const Panels<A>& c, const Panels<A>& a,
              cublasOperation_t op_a, const Panels<A>& b, cublasOperation_t op_b, Index inner,
              Into into) {
  if (c.count == 0 || c.rows == 0 || c.cols == 0) return;
  if (inner == 0) {
    if (into == Into::overwrite) set_zero(device, c);
    return;
  }
  constexpr bool is_double = std::is_same_v<A, double>;
  static_assert(is_double || std::is_same_v<A, float>, "mhla: cuBLAS knows float and double");
  const cudaDataType_t type = is_double ? CUDA_R_64F : CUDA_R_32F;
  const cublasComputeType_t compute = is_double ? CUBLAS_COMPUTE_64F
                                      : device.products() == FloatProducts::tf32
                                          ? CUBLAS_COMPUTE_32F_FAST_TF32
                                          : CUBLAS_COMPUTE_32F_PEDANTIC;
  const A one = 1;
  const A beta = into == Into::add ? 1 : 0;
  check_cublas(cublasGemmStridedBatchedEx(
                   device.cublas(), op_b, op_a, narrow(c.cols), narrow(c.rows), narrow(inner), &one,
                   b.data, type, narrow(b.stride), b.panel_stride, a.data, type, narrow(a.stride),
                   a.panel_stride, &beta, c.data, type, narrow(c.stride), c.panel_stride,
                   narrow(c.count), compute, CUBLAS_GEMM_DEFAULT),
               "cublasGemmStridedBatchedEx");
}

}  // namespace gemm

/// c (+)= a b
template <class A>
void multiply(const CudaDevice& device, const Panels<A>& c, const Panels<A>& a, const Panels<A>& b,
              Into into = Into::overwrite) {
  gemm::multiply<A>(device, c, a, CUBLAS_OP_N, b, CUBLAS_OP_N, a.cols, into);
}

/// c (+)= a^T b
template <class A>
void multiply_left_transposed(const CudaDevice& device, const Panels<A>& c, const Panels<A>& a,
                              const Panels<A>& b, Into into = Into::overwrite) {
  gemm::multiply<A>(device, c, a, CUBLAS_OP_T, b, CUBLAS_OP_N, a.rows, into);
}

/// c (+)= a b^T
template <class A>
void multiply_right_transposed(const CudaDevice& device, const Panels<A>& c, const Panels<A>& a,
                               const Panels<A>& b, Into into = Into::overwrite) {
  gemm::multiply<A>(device, c, a, CUBLAS_OP_N, b, CUBLAS_OP_T, a.cols, into);
}

/// Rows whose own corner of a triangle is computed element by element; the rest is a product.
inline constexpr Index corner_rows = 16;

/// Which entries of a matrix count: row r is row i = first + r of a square one, of which entries b
/// <= i - lag do. The others are never multiplied, so that a NaN in them does not spread.
struct LowerTriangle {
  Index first = 0;
  Index lag = 0;

  /// Entries of a row that count.
  MHLA_HOST_DEVICE Index columns_of(Index r) const {
    const Index columns = first + r + 1 - lag;
    return columns < 0 ? 0 : columns;
  }
  /// First row of which entry `column` counts.
  MHLA_HOST_DEVICE Index first_row_of(Index column) const {
    const Index row = column + lag - first;
    return row < 0 ? 0 : row;
  }
  /// The first of the rows that share row r's corner: a multiple of corner_rows in the square
  /// matrix, so that rows are summed alike wherever a part of them begins; maybe before row 0.
  MHLA_HOST_DEVICE Index corner_of(Index r) const {
    return (first + r) / corner_rows * corner_rows - first;
  }
};

/// Calls f(first, count, columns) for rows [first, first + count) of one corner, of as many as
/// `rows`, that have `columns` entries before it.
template <class F>
void for_each_corner(const LowerTriangle& triangle, Index rows, const F& f) {
  for (Index r = 0; r < rows;) {
    const Index corner = triangle.corner_of(r);
    const Index end = corner + corner_rows < rows ? corner + corner_rows : rows;
    f(r, end - r, triangle.columns_of(corner));
    r = end;
  }
}

/// Row x of c (+)= tril(a) b, or of tril(a)^T b, over the entries in the corner of x's group.
template <class A, bool transposed>
struct MultiplyCorners {
  Panels<A> c;
  Panels<A> a;
  Panels<A> b;
  LowerTriangle triangle;
  Into into;
  Divisor rows{c.rows};

  MHLA_HOST_DEVICE void operator()(std::uint32_t n, const RowShare& share) const {
    const Index x = rows.divide(n);
    Index begin = 0;
    Index end = 0;
    if constexpr (transposed) {
      // The rows of the one group whose corner contains column x; later groups have it in full.
      begin = triangle.first_row_of(x);
      const Index group = triangle.corner_of(begin);
      const Index next = group + corner_rows < a.rows ? group + corner_rows : a.rows;
      end = x < triangle.columns_of(group) ? begin : next;
    } else {
      begin = triangle.columns_of(triangle.corner_of(x));
      end = triangle.columns_of(x);
    }
    for (Index col = share.first; col < c.cols; col += share.step) {
      A& to = c.row(n, x)[col];
      A sum = into == Into::add ? to : A(0);
      for (Index k = begin; k < end; ++k)
        sum += (transposed ? a.row(n, k)[x] : a.row(n, x)[k]) * b.row(n, k)[col];
      to = sum;
    }
  }
};

/// c (+)= tril(a) b; without a triangle, a b
template <class A>
void multiply_lower(const CudaDevice& device, const Panels<A>& c, const Panels<A>& a,
                    const Panels<A>& b, const std::optional<LowerTriangle>& triangle, Into into) {
  if (!triangle) return multiply(device, c, a, b, into);
  launch_rows(device, c.count * c.rows, c.cols,
              MultiplyCorners<A, false>{c, a, b, *triangle, into});
  for_each_corner(*triangle, c.rows, [&](Index r, Index rows, Index columns) {
    multiply(device, c.row_range(r, rows), a.row_range(r, rows).column_range(0, columns),
             b.row_range(0, columns), Into::add);
  });
}

/// c (+)= tril(a)^T b; without a triangle, a^T b
template <class A>
void multiply_lower_transposed(const CudaDevice& device, const Panels<A>& c, const Panels<A>& a,
                               const Panels<A>& b, const std::optional<LowerTriangle>& triangle,
                               Into into) {
  if (!triangle) return multiply_left_transposed(device, c, a, b, into);
  launch_rows(device, c.count * c.rows, c.cols, MultiplyCorners<A, true>{c, a, b, *triangle, into});
  for_each_corner(*triangle, a.rows, [&](Index r, Index rows, Index all) {
    const Index columns = all < c.rows ? all : c.rows;
    multiply_left_transposed(device, c.row_range(0, columns),
                             a.row_range(r, rows).column_range(0, columns), b.row_range(r, rows),
                             Into::add);
  });
}

}  // namespace cuda

MHLA_NAMESPACE_END
