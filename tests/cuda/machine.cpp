// SPDX-License-Identifier: MIT
// That what stands in for a GPU can be trusted: its products are those that cuBLAS documents, its
// kernels meet every element once. And how the backend treats the handle that it borrows.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <mhla/cuda/instantiate.cuh>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/support/error_message.hpp"

namespace {

using mhla::Index;

template <class T>
constexpr cudaDataType_t type_of = std::is_same_v<T, double> ? CUDA_R_64F : CUDA_R_32F;
template <class T>
constexpr cublasComputeType_t compute_of =
    std::is_same_v<T, double> ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F_PEDANTIC;

/// A batch of column-major matrices; small integers, so that every sum is exact.
template <class T>
struct Matrices {
  int rows, cols, leading;
  long long stride;
  std::vector<T> memory;

  Matrices(int r, int c, int gap, long long panel_stride, int batch, std::uint64_t seed)
      : rows(r), cols(c), leading(r + gap), stride(panel_stride) {
    const auto last = stride * (batch - 1) + static_cast<long long>(leading) * cols;
    for (long long i = 0; i < last; ++i)
      memory.push_back(
          static_cast<T>(mhla::testing::random_index(seed, static_cast<std::uint64_t>(i), 9) - 4));
  }
  std::size_t at(int n, int r, int c) const {
    return static_cast<std::size_t>(n * stride + r + static_cast<long long>(c) * leading);
  }
};

template <class T>
struct Product {
  int m = 3, n = 4, k = 5, batch = 3;
  int gap_a = 0, gap_b = 0, gap_c = 0;
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  bool one_a = false, one_b = false;  // stride 0
  T alpha = 1, beta = 0;

  /// Fails unless the stand-in gives what the definition says, and writes nothing else.
  void check() const {
    CAPTURE(m, n, k, batch, gap_a, gap_b, gap_c, op_a, op_b, one_a, one_b, alpha, beta);
    const bool turned_a = op_a == CUBLAS_OP_T, turned_b = op_b == CUBLAS_OP_T;
    const Matrices<T> a(turned_a ? k : m, turned_a ? m : k, gap_a, one_a ? 0 : 61, batch, 1);
    const Matrices<T> b(turned_b ? n : k, turned_b ? k : n, gap_b, one_b ? 0 : 67, batch, 2);
    Matrices<T> c(m, n, gap_c, 71, batch, 3);
    auto expected = c.memory;
    for (int i = 0; i < batch; ++i)
      for (int row = 0; row < m; ++row)
        for (int col = 0; col < n; ++col) {
          T sum = 0;
          for (int l = 0; l < k; ++l)
            sum += a.memory[turned_a ? a.at(i, l, row) : a.at(i, row, l)] *
                   b.memory[turned_b ? b.at(i, col, l) : b.at(i, l, col)];
          T& to = expected[c.at(i, row, col)];
          to = alpha * sum + (beta == T(0) ? T(0) : beta * to);
          if (beta == T(0)) c.memory[c.at(i, row, col)] = std::numeric_limits<T>::quiet_NaN();
        }
    cublasContext handle;
    REQUIRE(cublasGemmStridedBatchedEx(&handle, op_a, op_b, m, n, k, &alpha, a.memory.data(),
                                       type_of<T>, a.leading, a.stride, b.memory.data(), type_of<T>,
                                       b.leading, b.stride, &beta, c.memory.data(), type_of<T>,
                                       c.leading, c.stride, batch, compute_of<T>,
                                       CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
    CHECK(handle.products == 1);
    CHECK(c.memory == expected);
  }
};

/// A call that may not be one, of 3 x 4 matrices with inner extent 5.
struct Call {
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  int m = 3, n = 4, k = 5, batch = 1;
  int lda = 3, ldb = 5, ldc = 3;
  cudaDataType_t type_a = CUDA_R_64F, type_c = CUDA_R_64F;
  cublasPointerMode_t mode = CUBLAS_POINTER_MODE_HOST;

  cublasStatus_t run() const {
    cublasContext handle;
    handle.pointer_mode = mode;
    std::vector<double> a(64), b(64), c(64, 7.0);
    const double one = 1, zero = 0;
    const cublasStatus_t status = cublasGemmStridedBatchedEx(
        &handle, op_a, op_b, m, n, k, &one, a.data(), type_a, lda, 0, b.data(), CUDA_R_64F, ldb, 0,
        &zero, c.data(), type_c, ldc, 0, batch, CUBLAS_COMPUTE_64F, CUBLAS_GEMM_DEFAULT);
    CHECK((status == CUBLAS_STATUS_SUCCESS || c == std::vector<double>(64, 7.0)));
    return status;
  }
};

struct CountVisits {
  Index* visits;
  std::vector<Index>* order;
  void operator()(Index i) const {
    ++visits[i];
    order->push_back(i);
  }
};

// Two streams, which nobody looks into.
cudaStream_t stream(int number) {
  static char streams[2];
  return reinterpret_cast<cudaStream_t>(&streams[number]);
}

}  // namespace

TEMPLATE_TEST_CASE("machine: products are those that cuBLAS documents", "[cuda]", float, double) {
  using P = Product<TestType>;
  for (const auto op_a : {CUBLAS_OP_N, CUBLAS_OP_T})
    for (const auto op_b : {CUBLAS_OP_N, CUBLAS_OP_T}) {
      P{.op_a = op_a, .op_b = op_b}.check();
      P{.gap_a = 2, .gap_b = 1, .gap_c = 3, .op_a = op_a, .op_b = op_b}.check();
      P{.op_a = op_a, .op_b = op_b, .one_a = true}.check();
      P{.op_a = op_a, .op_b = op_b, .one_b = true, .beta = 1}.check();
      P{.gap_c = 2, .op_a = op_a, .op_b = op_b, .alpha = 2, .beta = 3}.check();
      P{.m = 1, .n = 7, .k = 1, .op_a = op_a, .op_b = op_b}.check();
      P{.k = 0, .gap_a = 1, .gap_b = 1, .op_a = op_a, .op_b = op_b}.check();
    }
}

TEST_CASE("machine: calls that cuBLAS refuses are refused", "[cuda]") {
  constexpr auto invalid = CUBLAS_STATUS_INVALID_VALUE;
  CHECK(Call{}.run() == CUBLAS_STATUS_SUCCESS);
  CHECK(Call{.lda = 2}.run() == invalid);
  CHECK(Call{.ldb = 4}.run() == invalid);
  CHECK(Call{.ldc = 2}.run() == invalid);
  CHECK(Call{.op_a = CUBLAS_OP_T, .lda = 4}.run() == invalid);
  CHECK(Call{.op_a = CUBLAS_OP_T, .lda = 5}.run() == CUBLAS_STATUS_SUCCESS);
  CHECK(Call{.op_b = CUBLAS_OP_T, .ldb = 3}.run() == invalid);
  CHECK(Call{.op_b = CUBLAS_OP_T, .ldb = 4}.run() == CUBLAS_STATUS_SUCCESS);
  CHECK(Call{.k = 0, .ldb = 0}.run() == invalid);  // at least 1, whatever the extents
  CHECK(Call{.m = -1}.run() == invalid);
  CHECK(Call{.n = -1}.run() == invalid);
  CHECK(Call{.k = -1}.run() == invalid);
  CHECK(Call{.batch = -1}.run() == invalid);
  CHECK(Call{.batch = 2}.run() == invalid);  // both in one place, which cuBLAS does not notice
  CHECK(Call{.mode = CUBLAS_POINTER_MODE_DEVICE}.run() == invalid);
  CHECK(Call{.type_a = CUDA_R_32F}.run() == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(Call{.type_c = CUDA_R_32F}.run() == CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_CASE("machine: a launch meets every element once, in another order each time", "[cuda]") {
  bool shuffled = false, changed = false;
  for (const Index count : {0, 1, 2, 3, 4, 6, 7, 12, 97, 360, 1024}) {
    CAPTURE(count);
    std::vector<Index> orders[2];
    for (auto& order : orders) {
      std::vector<Index> visits(static_cast<std::size_t>(count));
      mhla::cuda::launch(machine::device(), count, CountVisits{visits.data(), &order});
      CHECK(visits == std::vector<Index>(static_cast<std::size_t>(count), 1));
      shuffled = shuffled || !std::is_sorted(order.begin(), order.end());
    }
    changed = changed || orders[0] != orders[1];
  }
  CHECK(shuffled);
  CHECK(changed);
}

TEST_CASE("cublas: stream, math mode and pointer mode are the caller's again", "[cuda]") {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D> attention{.blocks = {.block = 4}};
  cublasContext handle;
  handle.stream = stream(0);
  handle.pointer_mode = CUBLAS_POINTER_MODE_DEVICE;
  handle.math_mode = CUBLAS_TF32_TENSOR_OP_MATH;
  const auto check = [&](auto zero, mhla::FloatProducts products, cublasComputeType_t compute) {
    using T = decltype(zero);
    const auto x = call::operands<T>(attention, {2, 2, 1, 9, 9, 4, 3});
    const mhla::CudaDevice device(stream(1), &handle, {}, products);
    const auto check_handle = [&] {
      CHECK(handle.last_stream == stream(1));
      CHECK(handle.last_launch_stream == stream(1));
      CHECK(handle.last_math_mode == CUBLAS_DEFAULT_MATH);
      CHECK(handle.last_compute == compute);
      CHECK(handle.last_workspace_size == mhla::cuda::cublas_workspace_bytes);
      CHECK(handle.stream == stream(0));
      CHECK(handle.pointer_mode == CUBLAS_POINTER_MODE_DEVICE);
      CHECK(handle.math_mode == CUBLAS_TF32_TENSOR_OP_MATH);
      CHECK(handle.workspace == nullptr);  // the call's, which the caller may free
      handle.last_stream = handle.last_launch_stream = nullptr;
    };
    call::forward(attention, x, device);
    check_handle();
    call::backward(attention, x, device);
    check_handle();

    // Where cuBLAS fails, likewise, and the error names the function.
    handle.refuse_with = CUBLAS_STATUS_EXECUTION_FAILED;
    const auto fail = [&](const auto& run, const std::string& function) {
      CHECK(says(error_message<mhla::CudaError>(run), "mhla: " + function + " failed",
                 "the execution failed"));
      CHECK(handle.stream == stream(0));
      CHECK(handle.pointer_mode == CUBLAS_POINTER_MODE_DEVICE);
      CHECK(handle.math_mode == CUBLAS_TF32_TENSOR_OP_MATH);
      CHECK(handle.workspace == nullptr);
    };
    fail([&] { call::forward(attention, x, device); }, "cublasGemmStridedBatchedEx");
    fail([&] { call::backward(attention, x, device); }, "cublasGemmStridedBatchedEx");
    handle.refuse_with = CUBLAS_STATUS_SUCCESS;
    handle.refuse_workspace_with = CUBLAS_STATUS_EXECUTION_FAILED;  // with the stream set already
    fail([&] { call::forward(attention, x, device); }, "cublasSetWorkspace");
    handle.refuse_workspace_with = CUBLAS_STATUS_SUCCESS;
  };
  using mhla::FloatProducts;
  check(0.0, FloatProducts::exact, CUBLAS_COMPUTE_64F);
  check(0.0, FloatProducts::tf32, CUBLAS_COMPUTE_64F);
  check(0.0f, FloatProducts::exact, CUBLAS_COMPUTE_32F_PEDANTIC);
  check(0.0f, FloatProducts::tf32, CUBLAS_COMPUTE_32F_FAST_TF32);
  check(mhla::BFloat16{}, FloatProducts::exact, CUBLAS_COMPUTE_32F_PEDANTIC);
}

TEST_CASE("cublas: matrices larger than it can count are refused", "[cuda]") {
  CHECK(mhla::cuda::gemm::narrow(std::numeric_limits<int>::max()) ==
        std::numeric_limits<int>::max());
  CHECK(says(error_message<mhla::ShapeError>(
                 [] { mhla::cuda::gemm::narrow(Index{std::numeric_limits<int>::max()} + 1); }),
             "2147483648", "more than cuBLAS can index"));
}
