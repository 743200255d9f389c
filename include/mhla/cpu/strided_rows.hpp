// SPDX-License-Identifier: MIT
// The tokens of a head in a tensor. Rows whose elements are not contiguous, as in a column-major
// matrix: read and written tile by tile, in memory order.
#pragma once

#include <mhla/cpu/block_table.hpp>
#include <mhla/cpu/gemm.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Rows whose elements need not be contiguous: element (r, c) at data[r * row_stride + c * stride].
template <class T>
struct StridedRows {
  T* data;
  Index rows;
  Index cols;
  Index row_stride;
  Index stride;

  StridedRows transposed() const { return {data, cols, rows, stride, row_stride}; }
  /// Whether memory is better traversed by columns: if rows are closer together than elements of a
  /// row, and there are enough to be worth transposing.
  bool is_walked_by_columns() const {
    const auto size = [](Index step) { return step < 0 ? -step : step; };
    return size(row_stride) < size(stride) && rows >= 4;
  }
};

/// The tokens of one (batch, head) of a tensor: [tokens, dim].
template <class T>
struct TokenRows {
  T* data;
  Index dim;
  Index token_stride;
  Index stride;

  TokenRows(const TensorView<T, 4>& view, Index batch, Index head)
      : data(view.data), dim(view.extent[3]), token_stride(0), stride(1) {
    if (view.data == nullptr) return;  // an empty tensor
    data += batch * view.stride[0] + head * view.stride[1];
    token_stride = view.stride[2];
    stride = view.stride[3];
  }

  StridedRows<T> strided(const TokenRun& run) const {
    return {data + run.first * token_stride, run.count, dim, token_stride, stride};
  }
};

/// Elements of strided rows processed at once.
inline constexpr Index strided_tile_rows = 16;
inline constexpr Index strided_tile_cols = max_placed_rows;
template <class T>
struct StridedTile {
  alignas(max_vector_bytes) T elements[std::size_t{strided_tile_rows * strided_tile_cols}];
};

/// f(tile of x, first row, first column) for all of x.
template <class T, class F>
void for_each_tile(const StridedRows<T>& x, const F& f) {
  for (Index r = 0; r < x.rows; r += strided_tile_rows)
    for (Index c = 0; c < x.cols; c += strided_tile_cols)
      f(StridedRows<T>{x.data + r * x.row_stride + c * x.stride,
                       (std::min)(strided_tile_rows, x.rows - r),
                       (std::min)(strided_tile_cols, x.cols - c), x.row_stride, x.stride},
        r, c);
}

/// to = from, as it is stored
template <class From, class To>
void copy_tile(const StridedRows<From>& from, const StridedRows<To>& to) {
  for (Index r = 0; r < from.rows; ++r)
    for (Index c = 0; c < from.cols; ++c)
      to.data[r * to.row_stride + c * to.stride] = from.data[r * from.row_stride + c * from.stride];
}

/// result = x, a tile
template <class T, class Stored>
void read_tile(const StridedRows<const Stored>& x, const Panel<T>& result) {
  if (x.stride == 1) return weighted_rows<T, Stored>(result, {}, {x.data, x.row_stride});
  StridedTile<Stored> together;
  copy_tile(x, StridedRows<Stored>{together.elements, x.rows, x.cols, strided_tile_cols, 1});
  weighted_rows<T, Stored>(result, {}, {together.elements, strided_tile_cols});
}

/// result_r (+)= weight_r x_r, a tile
template <class Stored, class T>
void write_tile(const StridedRows<Stored>& result, const Span<const T>& weights,
                const Panel<const T>& x, Update update) {
  if (result.stride == 1)
    return store_rows<Stored, T>({result.data, result.row_stride}, weights, x, update);
  StridedTile<Stored> elements;
  const StridedRows<Stored> together{elements.elements, result.rows, result.cols, strided_tile_cols,
                                     1};
  if (update == Update::accumulate) copy_tile(result, together);
  store_rows<Stored, T>({together.data, together.row_stride}, weights, x, update);
  copy_tile(together, result);
}

/// result_r = x_r
template <class T, class Stored>
MHLA_OUT_OF_LINE void gather_strided(const Panel<T>& result, const StridedRows<const Stored>& x) {
  if (!x.is_walked_by_columns()) {
    for_each_tile(x, [&](const StridedRows<const Stored>& tile, Index r, Index c) {
      read_tile<T, Stored>(tile, {result.row(r) + c, tile.rows, tile.cols, result.stride});
    });
    return;
  }
  for_each_tile(x.transposed(), [&](const StridedRows<const Stored>& tile, Index col, Index row) {
    StridedTile<T> columns;
    const Panel<T> lines{columns.elements, tile.rows, tile.cols, strided_tile_cols};
    read_tile<T, Stored>(tile, lines);
    transpose<T>({result.row(row) + col, tile.cols, tile.rows, result.stride}, lines);
  });
}

/// The inverse: result_r (+)= weight_r x_r, all 1 if `weights` is empty
template <class Stored, class T>
MHLA_OUT_OF_LINE void scatter_strided(const StridedRows<Stored>& result,
                                      const Span<const T>& weights, const Panel<const T>& x,
                                      Update update) {
  const bool weighted = weights.size > 0;
  if (!result.is_walked_by_columns()) {
    for_each_tile(result, [&](const StridedRows<Stored>& tile, Index r, Index c) {
      write_tile<Stored, T>(tile, {weights.data + (weighted ? r : 0), weighted ? tile.rows : 0},
                            {x.row(r) + c, tile.rows, tile.cols, x.stride}, update);
    });
    return;
  }
  for_each_tile(result.transposed(), [&](const StridedRows<Stored>& tile, Index col, Index row) {
    StridedTile<T> columns;
    const Panel<T> lines{columns.elements, tile.rows, tile.cols, strided_tile_cols};
    transpose<T>(lines, {x.row(row) + col, tile.cols, tile.rows, x.stride});
    if (weighted)
      for (Index c = 0; c < lines.rows; ++c)
        for (Index r = 0; r < lines.cols; ++r) lines.row(c)[r] *= weights[row + r];
    write_tile<Stored, T>(tile, {}, lines, update);
  });
}

}  // namespace cpu

MHLA_NAMESPACE_END
