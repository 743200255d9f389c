// SPDX-License-Identifier: MIT
// All matrix products of the CPU backend. Panels are row-major; a product overwrites or adds to its
// result, allocates nothing, and gives the same bits for the same extents, wherever its factors are
// in memory.
#pragma once

#include <algorithm>
#include <mhla/core/gradient_views.hpp>
#include <mhla/cpu/kernels.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// A borrowed row-major matrix: element (r, c) lies at data[r * stride + c].
template <class T>
struct Panel {
  T* data = nullptr;
  Index rows = 0;
  Index cols = 0;
  Index stride = 0;

  T* row(Index r) const { return data + r * stride; }
  Panel row_range(Index first, Index count) const { return {row(first), count, cols, stride}; }
  Panel col_range(Index first, Index count) const { return {data + first, rows, count, stride}; }
  Rows<T> placed() const { return {data, stride}; }

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

/// What a product of T reads: its type follows from the result's.
template <class T>
using Factor = Panel<const std::type_identity_t<T>>;
template <class T>
using Factors = Span<const std::type_identity_t<T>>;

template <class A>
void set_zero(const Panel<A>& panel) {
  for (Index r = 0; r < panel.rows; ++r) std::fill_n(panel.row(r), panel.cols, A(0));
}

/// The tile shapes of this machine.
template <class T>
MHLA_OUT_OF_LINE const ProductTiles<T>& product_tiles() {
  const ProductTiles<T>* tiles = nullptr;
  with_kernels<T>([&](auto kernels) { tiles = &kernels.product_tiles; });
  return *tiles;
}

/// A product with this machine's tiles.
template <class T>
MHLA_OUT_OF_LINE void multiply(const Product<T>& product) {
  multiply(product_tiles<T>(), product);
}

template <class T>
Product<T> product_of(const Panel<T>& result, const Panel<const T>& a, bool transposed,
                      const Panel<const T>& b, Into into) {
  return {.rows = result.rows,
          .cols = result.cols,
          .depth = transposed ? a.rows : a.cols,
          .a = a.placed(),
          .a_transposed = transposed,
          .b = b.placed(),
          .c = result.placed(),
          .add = into == Into::add};
}

/// result (+)= a b
template <class T>
void multiply(const Panel<T>& result, const Factor<T>& a, const Factor<T>& b,
              Into into = Into::overwrite) {
  multiply(product_of<T>(result, a, false, b, into));
}

/// result_r = scale_r (a b)_r, where result's rows need not be contiguous; without scales all are
/// 1. `prefetch`, if any, is fetched meanwhile.
template <class T>
void multiply_into_rows(const Rows<T>& result, const Factor<T>& a, const Factor<T>& b,
                        Factors<T> scales = {}, Prefetch* prefetch = nullptr) {
  multiply(Product<T>{.rows = a.rows,
                      .cols = b.cols,
                      .depth = a.cols,
                      .a = a.placed(),
                      .b = b.placed(),
                      .c = result,
                      .scale = scales.size > 0 ? scales.data : nullptr,
                      .prefetch = prefetch});
}

/// result (+)= a^T b, a part of a sum over many tiles, of `depth` rows of a and b; up to
/// max_placed_rows need not be contiguous.
template <class T>
void multiply_left_transposed_rows(const Panel<T>& result, Index depth,
                                   const Rows<const std::type_identity_t<T>>& a,
                                   const Rows<const std::type_identity_t<T>>& b, Into into,
                                   Prefetch* prefetch) {
  multiply(Product<T>{.rows = result.rows,
                      .cols = result.cols,
                      .depth = depth,
                      .a = a,
                      .a_transposed = true,
                      .b = b,
                      .c = result.placed(),
                      .add = into == Into::add,
                      .prefetch = prefetch,
                      .in_parts = true});
}

/// The product of panels.
template <class T>
void multiply_left_transposed(const Panel<T>& result, const Factor<T>& a, const Factor<T>& b,
                              Into into = Into::overwrite, Prefetch* prefetch = nullptr) {
  multiply_left_transposed_rows<T>(result, a.rows, a.placed(), b.placed(), into, prefetch);
}

/// This machine's products of rows.
template <class T>
MHLA_OUT_OF_LINE const DotTiles<T>& dot_tiles() {
  const DotTiles<T>* tiles = nullptr;
  with_kernels<T>([&](auto kernels) { tiles = &kernels.dot_tiles; });
  return *tiles;
}

/// result (+)= a b^T. A part of the rows of a gets the same bits as all `rows`, if it says so.
template <class T>
MHLA_OUT_OF_LINE void multiply_right_transposed(const Panel<T>& result, const Factor<T>& a,
                                                const Factor<T>& b, Into into = Into::overwrite,
                                                Index rows = -1) {
  // Adding up the lanes of every sum is cheaper than transposing b if there are few sums per
  // element of b, or many terms per sum.
  constexpr Index few_rows = 4;
  constexpr Index many_rows = 96;
  constexpr Index long_row = 1024;
  const Product<T> product = product_of<T>(result, a, false, b, into);
  if (rows < 0) rows = a.rows;
  if (rows <= few_rows || (rows < many_rows && a.cols >= long_row)) {
    multiply_dots(dot_tiles<T>(), product);
  } else {
    multiply_transposed(product_tiles<T>(), product);
  }
}

/// result [cols, rows] = a^T
template <class T>
void transpose(const Panel<T>& result, const Factor<T>& a) {
  product_tiles<T>().transpose(a.rows, a.cols, a.data, a.stride, result.data, result.stride);
}

/// result (+)= weights b, or weights^T b, for rows of b that exceed the caches.
template <class T>
MHLA_ONCE_A_CALL void mix_rows(const Panel<T>& result, const Factor<T>& weights, bool transposed,
                               const Factor<T>& b, Into into) {
  multiply_panels<T>(product_tiles<T>(), product_of<T>(result, weights, transposed, b, into),
                     Terms::all, nullptr);
}

/// The weighted product, for triangles, too: rows of b without a weight are not read.
template <class T>
MHLA_ONCE_A_CALL void mix_rows(const Panel<T>& result, const Factor<T>& weights, bool transposed,
                               const Factor<T>& b, Into into, Terms terms) {
  if (terms == Terms::all) return mix_rows<T>(result, weights, transposed, b, into);
  TriangleKernel<T>* triangle = nullptr;
  with_kernels<T>([&](auto kernels) { triangle = kernels.triangle; });
  multiply_panels<T>(product_tiles<T>(), product_of<T>(result, weights, transposed, b, into), terms,
                     triangle);
}

/// result_r = <a_r, b_r>, row by row
template <class T>
MHLA_OUT_OF_LINE void row_products(const Span<T>& result, const Factor<T>& a, const Factor<T>& b) {
  with_kernels<T>([&](auto kernels) {
    kernels.row_products(a.rows, a.cols, a.data, a.stride, b.data, b.stride, result.data);
  });
}

/// result_r = <a_r, b> for one row b
template <class T>
void row_products(const Span<T>& result, const Factor<T>& a, const Factors<T>& b) {
  row_products(result, a, Panel<const T>{b.data, a.rows, b.size, 0});
}

/// A row that is a sum of many parts, and the rounding errors so far, which do not accumulate if
/// kept. Without `rest` they do.
template <class T>
struct CompensatedSum {
  Span<T> sum;
  Span<T> rest{};

  void set_zero() const {
    std::fill_n(sum.data, sum.size, T(0));
    std::fill_n(rest.data, rest.size, T(0));
  }
};

/// result (+)= weight times the sum of the rows of a; row r of `running`, if any, is the result
/// after row r
template <class T>
MHLA_OUT_OF_LINE void add_rows(const CompensatedSum<T>& result, std::type_identity_t<T> weight,
                               const Factor<T>& a, Into into,
                               const Panel<std::type_identity_t<T>>& running = {}) {
  if (into == Into::overwrite) result.set_zero();
  with_kernels<T>([&](auto kernels) {
    kernels.add_rows(RowSum<T>{a.rows, result.sum.size, weight, a.data, a.stride, result.sum.data,
                               result.rest.data, running.data, running.stride});
  });
}

/// result (+)= sum of weight_r a_r over the rows of a; all 1 if `weights` is empty
template <class T>
void weighted_row_sum(const Span<T>& result, const Factor<T>& a, const Factors<T>& weights,
                      Into into) {
  if (weights.size > 0)
    return multiply<T>(panel(result.data, 1, result.size), {weights.data, 1, a.rows, 0}, a, into);
  add_rows(CompensatedSum<T>{result}, T(1), a, into);
}

/// result_r = weight_r x_r, all 1 if `weights` is empty; the rows x need not be contiguous and may
/// be stored in 16 bits
template <class T, class Stored>
MHLA_OUT_OF_LINE void weighted_rows(const Panel<T>& result, const Factors<T>& weights,
                                    const Rows<const Stored>& x) {
  with_kernels<T>([&](auto kernels) {
    kernels.template weighted_rows<Stored>(result.rows, result.cols,
                                           weights.size > 0 ? weights.data : nullptr, x,
                                           result.data, result.stride);
  });
}

/// The inverse: result_r (+)= weight_r x_r
template <class Stored, class T>
MHLA_OUT_OF_LINE void store_rows(const Rows<Stored>& result, const Factors<T>& weights,
                                 const Panel<const T>& x, Update update) {
  with_kernels<T>([&](auto kernels) {
    kernels.template store_rows<Stored>(x.rows, x.cols, weights.size > 0 ? weights.data : nullptr,
                                        x.data, x.stride, result, update == Update::accumulate);
  });
}

/// to += scale from, `count` elements
template <class T>
MHLA_OUT_OF_LINE void add_scaled_row(T* to, T scale, const T* from, Index count) {
  with_kernels<T>([&](auto kernels) { kernels.add_scaled(count, scale, from, to); });
}

/// result_r += weight_r a_r
template <class T>
void add_weighted_rows(const Panel<T>& result, const Factors<T>& weights, const Factor<T>& a) {
  for (Index r = 0; r < result.rows; ++r)
    add_scaled_row(result.row(r), weights[r], a.row(r), a.cols);
}

/// sum over the rows of b of <a_r, b_r>
template <class T>
MHLA_OUT_OF_LINE T inner_product(const Panel<const T>& a, const Panel<const T>& b) {
  T sum = T(0);
  with_kernels<T>([&](auto kernels) {
    for (Index r = 0; r < b.rows; ++r) sum += kernels.dot(b.cols, a.row(r), b.row(r));
  });
  return sum;
}

/// inverse = 1 / x. False if an x or its inverse is 0 or not finite.
template <class T>
MHLA_OUT_OF_LINE bool invert(const Factors<T>& x, const Span<T>& inverse) {
  bool finite = true;
  with_kernels<T>([&](auto kernels) { finite = kernels.invert(x.size, x.data, inverse.data); });
  return finite;
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
void add_scaled(const Panel<T>& result, T scale, const Factor<T>& a) {
  for (Index r = 0; r < result.rows; ++r) add_scaled_row(result.row(r), scale, a.row(r), a.cols);
}

/// result_r = scale map(x_r) for an element-wise map; the rows x need not be contiguous and may be
/// stored in 16 bits
template <class Map, class Stored, class T>
MHLA_OUT_OF_LINE void map_rows(const Map& map, T scale, const Rows<const Stored>& x,
                               const Panel<T>& result) {
  with_kernels<T>([&](auto kernels) {
    kernels.template map_rows<Map, Stored>(map, scale, result.rows, result.cols, x, result.data,
                                           result.stride);
  });
}

/// The adjoint: result_r (+)= scale map'(x_r) (g_r + weight_r h_r). Weights are 1 if `weights` is
/// empty; h may be absent.
template <class Map, class Stored, class T>
MHLA_OUT_OF_LINE void unmap_rows(const Map& map, T scale, const Rows<const Stored>& x,
                                 const Factor<T>& g, Factors<T> weights,
                                 const Rows<const std::type_identity_t<T>>& h,
                                 const Rows<Stored>& result, Update update) {
  with_kernels<T>([&](auto kernels) {
    kernels.template unmap_rows<Map, Stored>(
        map, scale, g.rows, g.cols, x,
        RowGradients<T>{g.placed(), weights.size > 0 ? weights.data : nullptr, h}, result,
        update == Update::accumulate);
  });
}

/// result_t (+)= sum over j <= t of lower_tj b_j, of the transposed lower^T: entries above the
/// diagonal are not read.
template <class T>
void multiply_lower(const Panel<T>& result, const Factor<T>& lower_transposed, const Factor<T>& b,
                    Into into = Into::overwrite) {
  mix_rows(result, lower_transposed, true, b, into, Terms::past);
}

/// result_j (+)= sum over t >= j of lower_tj b_t: the adjoint of `multiply_lower`.
template <class T>
void multiply_lower_transposed(const Panel<T>& result, const Factor<T>& lower, const Factor<T>& b,
                               Into into = Into::overwrite) {
  mix_rows(result, lower, true, b, into, Terms::future);
}

}  // namespace cpu

MHLA_NAMESPACE_END
