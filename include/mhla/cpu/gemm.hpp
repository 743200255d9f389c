// SPDX-License-Identifier: MIT
// The matrix products of the CPU backend, all of them. Panels are row-major; a product overwrites
// or adds to its result, allocates nothing, and gives the same bits for the same extents wherever
// its factors lie.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/kernels.hpp>
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

/// result (+)= a b
template <class T>
void multiply(const Panel<T>& result, const Panel<const std::type_identity_t<T>>& a,
              const Panel<const std::type_identity_t<T>>& b, Into into = Into::overwrite) {
  with_kernels<T>([&](auto kernels) {
    kernels.multiply(result.rows, result.cols, a.cols, a.data, a.stride, 1, b.data, b.stride,
                     result.data, result.stride, into == Into::add);
  });
}

/// result (+)= a^T b
template <class T>
void multiply_left_transposed(const Panel<T>& result, const Panel<const std::type_identity_t<T>>& a,
                              const Panel<const std::type_identity_t<T>>& b,
                              Into into = Into::overwrite) {
  with_kernels<T>([&](auto kernels) {
    kernels.multiply(result.rows, result.cols, a.rows, a.data, 1, a.stride, b.data, b.stride,
                     result.data, result.stride, into == Into::add);
  });
}

/// result (+)= a b^T
template <class T>
void multiply_right_transposed(const Panel<T>& result,
                               const Panel<const std::type_identity_t<T>>& a,
                               const Panel<const std::type_identity_t<T>>& b,
                               Into into = Into::overwrite) {
  // To add up the lanes of every sum costs less than to transpose b where there are few sums for an
  // element of b, or many terms for a sum.
  constexpr Index few_rows = 4;
  constexpr Index long_row = 1024;
  with_kernels<T>([&](auto kernels) {
    if (a.cols >= long_row || a.rows <= few_rows) {
      kernels.multiply_long_transposed(result.rows, result.cols, a.cols, a.data, a.stride, b.data,
                                       b.stride, result.data, result.stride, into == Into::add);
    } else {
      kernels.multiply_transposed(result.rows, result.cols, a.cols, a.data, a.stride, b.data,
                                  b.stride, result.data, result.stride, into == Into::add);
    }
  });
}

/// result_r = <a_r, b_r>, row by row
template <class T>
void row_products(const Span<T>& result, const Panel<const std::type_identity_t<T>>& a,
                  const Panel<const std::type_identity_t<T>>& b) {
  with_kernels<T>([&](auto kernels) {
    kernels.row_products(a.rows, a.cols, a.data, a.stride, b.data, b.stride, result.data);
  });
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
  constexpr T one = T(1);
  const bool weighted = weights.size > 0;
  with_kernels<T>([&](auto kernels) {
    kernels.multiply(1, result.size, a.rows, weighted ? weights.data : &one, 0, weighted ? 1 : 0,
                     a.data, a.stride, result.data, result.size, into == Into::add);
  });
}

/// result_r = weight_r row, every weight 1 where `weights` is empty
template <class T>
void outer_product(const Panel<T>& result, const Span<const std::type_identity_t<T>>& weights,
                   const Span<const std::type_identity_t<T>>& row) {
  for (Index r = 0; r < result.rows; ++r) {
    const T weight = weights.size > 0 ? weights[r] : T(1);
    T* const to = result.row(r);
    for (Index c = 0; c < row.size; ++c) to[c] = weight * row[c];
  }
}

/// result_r = weight_r a_r
template <class T>
void weighted_rows(const Panel<T>& result, const Span<const std::type_identity_t<T>>& weights,
                   const Panel<const std::type_identity_t<T>>& a) {
  for (Index r = 0; r < result.rows; ++r) {
    const T* const from = a.row(r);
    T* const to = result.row(r);
    for (Index c = 0; c < a.cols; ++c) to[c] = weights[r] * from[c];
  }
}

/// to += scale from, `count` elements
template <class T>
void add_scaled_row(T* to, T scale, const T* from, Index count) {
  with_kernels<T>([&](auto kernels) { kernels.add_scaled(count, scale, from, to); });
}

/// result_r += weight_r a_r
template <class T>
void add_weighted_rows(const Panel<T>& result, const Span<const std::type_identity_t<T>>& weights,
                       const Panel<const std::type_identity_t<T>>& a) {
  for (Index r = 0; r < result.rows; ++r)
    add_scaled_row(result.row(r), weights[r], a.row(r), a.cols);
}

/// sum over the rows of b of <a_r, b_r>
template <class T>
T inner_product(const Panel<const T>& a, const Panel<const T>& b) {
  T sum = T(0);
  with_kernels<T>([&](auto kernels) {
    for (Index r = 0; r < b.rows; ++r) sum += kernels.dot(b.cols, a.row(r), b.row(r));
  });
  return sum;
}

/// to = from, `count` elements
template <class T>
void copy_row(T* to, const T* from, Index count) {
  std::copy_n(from, count, to);
}

/// a *= scale
template <class T>
void scale_rows(const Panel<T>& a, T scale) {
  for (Index r = 0; r < a.rows; ++r)
    for (Index c = 0; c < a.cols; ++c) a.row(r)[c] *= scale;
}

/// result += scale a
template <class T>
void add_scaled(const Panel<T>& result, T scale, const Panel<const std::type_identity_t<T>>& a) {
  for (Index r = 0; r < result.rows; ++r) add_scaled_row(result.row(r), scale, a.row(r), a.cols);
}

/// Rows of a triangle that are taken together: what lies below the diagonal block is a product, the
/// diagonal block itself goes row by row.
inline constexpr Index triangle_rows = 8;

/// result_t (+)= sum over j <= t of lower_tj b_j: entries above the diagonal are not read.
template <class T>
void multiply_lower(const Panel<T>& result, const Panel<const std::type_identity_t<T>>& lower,
                    const Panel<const std::type_identity_t<T>>& b, Into into = Into::overwrite) {
  for (Index first = 0; first < result.rows; first += triangle_rows) {
    const Index rows = std::min(triangle_rows, result.rows - first);
    const Panel<T> target = result.row_range(first, rows);
    multiply(target, {lower.row(first), rows, first, lower.stride}, b.row_range(0, first), into);
    for (Index t = 0; t < rows; ++t)
      for (Index j = 0; j <= t; ++j)
        add_scaled_row(target.row(t), lower.row(first + t)[first + j], b.row(first + j), b.cols);
  }
}

/// result_j (+)= sum over t >= j of lower_tj b_t: the transpose of `multiply_lower`.
template <class T>
void multiply_lower_transposed(const Panel<T>& result,
                               const Panel<const std::type_identity_t<T>>& lower,
                               const Panel<const std::type_identity_t<T>>& b,
                               Into into = Into::overwrite) {
  for (Index first = 0; first < result.rows; first += triangle_rows) {
    const Index rows = std::min(triangle_rows, result.rows - first);
    const Index below = lower.rows - first - rows;
    const Panel<T> target = result.row_range(first, rows);
    multiply_left_transposed(target, {lower.row(first + rows) + first, below, rows, lower.stride},
                             b.row_range(first + rows, below), into);
    for (Index j = 0; j < rows; ++j)
      for (Index t = j; t < rows; ++t)
        add_scaled_row(target.row(j), lower.row(first + t)[first + j], b.row(first + t), b.cols);
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
