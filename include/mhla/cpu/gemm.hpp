// SPDX-License-Identifier: MIT
// The matrix products of the CPU backend, all of them. Panels are row-major; a product overwrites
// or adds to its result, allocates nothing, and gives the same bits for the same extents wherever
// its factors lie. (Eigen splits rows of small results at vector boundaries, so multiply() needs
// its result where the workspace puts it; summaries, which a saved state puts anywhere, come from
// multiply_left_transposed().)
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// A row-major matrix somewhere in memory: element (r, c) lies at data[r * stride + c].
template <class T>
struct Panel {
  T* data = nullptr;
  Index rows = 0;
  Index cols = 0;
  Index stride = 0;

  T* row(Index r) const { return data + r * stride; }
  Panel row_range(Index first, Index count) const { return {row(first), count, cols, stride}; }

  template <class U, class = std::enable_if_t<std::is_same_v<U, const T> && !std::is_const_v<T>>>
  operator Panel<U>() const {  // NOLINT: adds const, loses nothing
    return {data, rows, cols, stride};
  }
};

/// A panel over contiguous memory.
template <class T>
Panel<T> panel(T* data, Index rows, Index cols) {
  return {data, rows, cols, cols};
}

/// Whether a product replaces its result or is added to it.
enum class Into { overwrite, add };

namespace gemm {

template <class T>
using Matrix = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>,
                          0, Eigen::OuterStride<>>;
template <class T>
using Result = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
                          Eigen::OuterStride<>>;

// Eigen packs both factors of a product, on the stack while each takes no more than its limit and
// on the heap above it. Products are therefore cut so that every factor stays below.
template <class T>
inline constexpr Index max_packed = (EIGEN_STACK_ALLOCATION_LIMIT == 0
                                         ? 128 * 1024
                                         : EIGEN_STACK_ALLOCATION_LIMIT) /
                                    static_cast<Index>(sizeof(T));

// The depth is cut first, to this many terms at the most: what is left for rows and columns is as
// much as Eigen's own blocking would take.
inline constexpr Index max_depth = 256;

// Calls product(target, overwrite, row, rows, col, cols, at, length) for even parts of the three
// axes, the sum over the depth in order.
template <class T, class Product>
void cut(const Panel<T>& result, Index depth, Into into, Product&& product) {
  const Index depth_cuts = ceil_div(depth, max_depth);
  const Index edge = max_packed<T> / std::max(Index{1}, std::min(depth, max_depth));
  const Index row_cuts = ceil_div(result.rows, edge);
  const Index col_cuts = ceil_div(result.cols, edge);
  for (Index i = 0; i < row_cuts; ++i) {
    const Index row = even_split(result.rows, row_cuts, i);
    const Index rows = even_split(result.rows, row_cuts, i + 1) - row;
    for (Index j = 0; j < col_cuts; ++j) {
      const Index col = even_split(result.cols, col_cuts, j);
      const Index cols = even_split(result.cols, col_cuts, j + 1) - col;
      Result<T> target(result.row(row) + col, rows, cols, Eigen::OuterStride<>(result.stride));
      if (depth == 0 && into == Into::overwrite) target.setZero();
      for (Index l = 0; l < depth_cuts; ++l) {
        const Index at = even_split(depth, depth_cuts, l);
        const Index length = even_split(depth, depth_cuts, l + 1) - at;
        const bool overwrite = l == 0 && into == Into::overwrite;
        product(target, overwrite, row, rows, col, cols, at, length);
      }
    }
  }
}

template <class Target, class Factors>
void assign(Target& target, bool overwrite, const Factors& factors) {
  if (overwrite) {
    target.noalias() = factors;
  } else {
    target.noalias() += factors;
  }
}

template <class T>
Matrix<T> map(const Panel<const T>& p, Index row, Index rows, Index col, Index cols) {
  return {p.row(row) + col, rows, cols, Eigen::OuterStride<>(p.stride)};
}

// Eigen's expressions vectorize sums whose order the compiler may not change by itself.
template <class T>
using Row = Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>>;
template <class T>
using RowResult = Eigen::Map<Eigen::Matrix<T, 1, Eigen::Dynamic>>;

}  // namespace gemm

/// result (+)= a b
template <class T>
void multiply(const Panel<T>& result, const Panel<const std::type_identity_t<T>>& a,
              const Panel<const std::type_identity_t<T>>& b, Into into = Into::overwrite) {
  gemm::cut(result, a.cols, into,
            [&](auto& target, bool overwrite, Index row, Index rows, Index col, Index cols,
                Index at, Index length) {
              gemm::assign(
                  target, overwrite,
                  gemm::map(a, row, rows, at, length) * gemm::map(b, at, length, col, cols));
            });
}

/// result (+)= a^T b
template <class T>
void multiply_left_transposed(const Panel<T>& result, const Panel<const std::type_identity_t<T>>& a,
                              const Panel<const std::type_identity_t<T>>& b,
                              Into into = Into::overwrite) {
  gemm::cut(result, a.rows, into,
            [&](auto& target, bool overwrite, Index row, Index rows, Index col, Index cols,
                Index at, Index length) {
              gemm::assign(target, overwrite,
                           gemm::map(a, at, length, row, rows).transpose() *
                               gemm::map(b, at, length, col, cols));
            });
}

/// result (+)= a b^T
template <class T>
void multiply_right_transposed(const Panel<T>& result,
                               const Panel<const std::type_identity_t<T>>& a,
                               const Panel<const std::type_identity_t<T>>& b,
                               Into into = Into::overwrite) {
  gemm::cut(result, a.cols, into,
            [&](auto& target, bool overwrite, Index row, Index rows, Index col, Index cols,
                Index at, Index length) {
              gemm::assign(target, overwrite,
                           gemm::map(a, row, rows, at, length) *
                               gemm::map(b, col, cols, at, length).transpose());
            });
}

/// result_r = <a_r, b_r>, row by row
template <class T>
void row_products(const Span<T>& result, const Panel<const std::type_identity_t<T>>& a,
                  const Panel<const std::type_identity_t<T>>& b) {
  for (Index r = 0; r < a.rows; ++r)
    result[r] = gemm::Row<T>(a.row(r), a.cols).dot(gemm::Row<T>(b.row(r), a.cols));
}

/// result_r = <a_r, b> for one row b
template <class T>
void row_products(const Span<T>& result, const Panel<const std::type_identity_t<T>>& a,
                  const Span<const std::type_identity_t<T>>& b) {
  row_products(result, a, Panel<const T>{b.data, a.rows, b.size, 0});
}

/// result (+)= sum of weight_r a_r over the rows of a; every weight is 1 where `weights` is empty
template <class T>
void weighted_row_sum(const Span<T>& result, const Panel<const std::type_identity_t<T>>& a,
                      const Span<const std::type_identity_t<T>>& weights, Into into) {
  gemm::RowResult<T> sum(result.data, result.size);
  if (into == Into::overwrite) sum.setZero();
  for (Index r = 0; r < a.rows; ++r) {
    if (weights.size > 0) {
      sum += weights[r] * gemm::Row<T>(a.row(r), result.size);
    } else {
      sum += gemm::Row<T>(a.row(r), result.size);
    }
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
