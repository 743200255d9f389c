// SPDX-License-Identifier: MIT
// Panels of bfloat16 in pairs, the factors of Precision::fast, and all products of them.
//
// A right factor's terms are its rows: VnniPanel. A left factor's are its columns (PairedRows), or
// the rows of a VnniPanel, transposed. Which terms are paired is the same in both factors of a
// product:
//   tokens and blocks   2 t and 2 t + 1
//   features            c and c + half, half = pairs_of(features)
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/cpu/kernels.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Pairs of rows, [pairs of terms, cols], which are read in whole vectors. Borrowed.
struct VnniPanel {
  Pair* data = nullptr;
  Index pairs = 0;
  Index cols = 0;
  Index stride = 0;

  Pair* row(Index pair) const { return data + pair * stride; }
  VnniPanel range(Index begin, Index end) const { return {row(begin), end - begin, cols, stride}; }
};
/// A contiguous one for `terms` rows.
inline VnniPanel pair_panel(Pair* data, Index terms, Index cols) {
  return {data, pairs_of(terms), cols, whole_columns(cols)};
}

/// Sums of a product, [rows, whole_columns(cols)].
inline Panel<float> whole_panel(float* data, Index rows, Index cols) {
  return panel(data, rows, whole_columns(cols));
}

/// Rows of pairs, [rows, pairs of columns]. Borrowed.
struct PairedRows {
  Pair* data = nullptr;
  Index rows = 0;
  Index cols = 0;
  Index stride = 0;

  Pair* row(Index r) const { return data + r * stride; }
};
inline PairedRows paired_rows(Pair* data, Index rows, Index cols) {
  return {data, rows, cols, pairs_of(cols)};
}

/// A left factor [rows, terms]: rows as they are, or the transpose of a panel.
struct LeftFactor {
  const Pair* data;
  Index rows;
  Index pairs;
  Index row_stride;
  Index pair_stride;

  LeftFactor(const Pair* elements, Index num_rows, Index num_pairs, Index from_row, Index from_pair)
      : data(elements),
        rows(num_rows),
        pairs(num_pairs),
        row_stride(from_row),
        pair_stride(from_pair) {}
  LeftFactor(const PairedRows& a)  // NOLINT: the same matrix
      : data(a.data), rows(a.rows), pairs(pairs_of(a.cols)), row_stride(a.stride), pair_stride(1) {}
  const Pair* row(Index r) const { return data + r * row_stride; }
  /// Some of the rows, and pairs [begin, end).
  LeftFactor range(Index first, Index count, Index begin, Index end) const {
    LeftFactor part = *this;
    part.data = row(first) + begin * pair_stride;
    part.rows = count;
    part.pairs = end - begin;
    return part;
  }
  /// One row of ones.
  static LeftFactor ones(Index terms) {
    static constexpr Pair one = 0x3f803f80;
    return {&one, 1, pairs_of(terms), 0, 0};
  }
  static LeftFactor transposed(const VnniPanel& a) {
    return {a.data, a.cols, a.pairs, 1, a.stride};
  }
};

/// This machine's kernels.
template <class T>
MHLA_OUT_OF_LINE const PairFunctions<T>& pair_functions() {
  const PairFunctions<T>* functions = nullptr;
  with_pair_kernels<T>([&](auto kernels) { functions = &kernels.functions; });
  return *functions;
}

/// to = from [rows, cols], rounded, in pairs of rows.
template <class Stored>
void pair_rows(const VnniPanel& to, Index rows, const Rows<const Stored>& from) {
  const PairFunctions<float>& kernels = pair_functions<float>();
  if constexpr (std::is_same_v<Stored, float>) {
    kernels.pair_rows(rows, to.cols, from, to.data, to.stride);
  } else {
    kernels.pair_stored_rows(rows, to.cols, from, to.data, to.stride);
  }
}

/// Rows in pairs of features.
template <class Stored>
void pair_columns(const PairedRows& to, const Rows<const Stored>& from) {
  const PairFunctions<float>& kernels = pair_functions<float>();
  if constexpr (std::is_same_v<Stored, float>) {
    kernels.pair_columns(to.rows, to.cols, from, to.data, to.stride);
  } else {
    kernels.pair_stored_columns(to.rows, to.cols, from, to.data, to.stride);
  }
}

/// to = map(from), rounded, in pairs of rows; sum += its rows unless that is empty.
template <class Map, class Stored>
MHLA_OUT_OF_LINE void map_pair_rows(const Map& map, const VnniPanel& to, Index rows,
                                    const Rows<const Stored>& from, Span<float> sum) {
  with_pair_kernels<float>([&](auto kernels) {
    kernels.template map_pair_rows<Map, Stored>(map, rows, to.cols, from, to.data, to.stride,
                                                sum.size > 0 ? sum.data : nullptr);
  });
}

/// to = scale map(from), rounded, in pairs of columns; products_r = <scale map(from_r), weights>
/// unless that is empty.
template <class Map, class Stored>
MHLA_OUT_OF_LINE void map_pair_columns(const Map& map, float scale, const PairedRows& to,
                                       const Rows<const Stored>& from, Span<const float> weights,
                                       Span<float> products) {
  with_pair_kernels<float>([&](auto kernels) {
    kernels.template map_pair_columns<Map, Stored>(
        map, scale, to.rows, to.cols, from, Rows<Pair>{to.data, to.stride},
        weights.size > 0 ? weights.data : nullptr, products.data);
  });
}

/// to = from^T: pairs of rows of the transpose.
MHLA_OUT_OF_LINE inline void transpose(const VnniPanel& to, const PairedRows& from) {
  pair_functions<float>().transpose(from.rows, pairs_of(from.cols), from.data, from.stride, to.data,
                                    to.stride);
}

/// sum += `rows` rows of a tensor.
MHLA_OUT_OF_LINE inline void add_rows(const Span<float>& sum, const Rows<const BFloat16>& from,
                                      Index rows) {
  pair_functions<float>().add_rows(rows, sum.size, from, sum.data);
}

/// squares_r = |from_r - center|^2 of `rows` rows.
template <class Stored>
MHLA_OUT_OF_LINE void row_distances(const Rows<Stored>& from, Index rows, Span<const float> center,
                                    Span<float> squares) {
  const PairFunctions<float>& kernels = pair_functions<float>();
  if constexpr (std::is_same_v<std::remove_const_t<Stored>, float>) {
    kernels.row_distances(rows, center.size, from, center.data, squares.data);
  } else {
    kernels.stored_row_distances(rows, center.size, from, center.data, squares.data);
  }
}

/// to [cols, rows] = from [rows, cols]^T, both in pairs of their halves.
MHLA_OUT_OF_LINE inline void turn(const VnniPanel& to, const VnniPanel& from) {
  pair_functions<float>().turn(from.pairs, to.cols, from.cols, from.data, from.stride, to.data,
                               to.stride);
}

/// The product of a and b, without what becomes of it.
inline PairProduct product_of(const LeftFactor& a, const VnniPanel& b) {
  return {.rows = a.rows,
          .cols = whole_columns(b.cols),
          .depth = b.pairs,
          .a = a.data,
          .a_row = a.row_stride,
          .a_term = a.pair_stride,
          .b = b.data,
          .b_stride = b.stride};
}

MHLA_OUT_OF_LINE inline void multiply(PairProduct product) {
  Prefetch nothing;
  if (product.prefetch == nullptr) product.prefetch = &nothing;
  pair_functions<float>().multiply(product);
}

/// sums (+)= a b
inline void multiply(const Panel<float>& sums, const LeftFactor& a, const VnniPanel& b, Into into,
                     Prefetch* prefetch = nullptr) {
  PairProduct product = product_of(a, b);
  product.sums = sums.data;
  product.sums_stride = sums.stride;
  if (into == Into::add) product.add = sums.data;
  product.prefetch = prefetch;
  multiply(product);
}

/// Half `half` of pairs = a b, rounded, plus `add` if that has rows. The upper half is written
/// after the lower.
inline void multiply_into_half(const VnniPanel& pairs, int half, const LeftFactor& a,
                               const VnniPanel& b, const Panel<float>& add, Prefetch* prefetch) {
  PairProduct product = product_of(a, b);
  product.into = half == 0 ? PairSums::lower_halves : PairSums::upper_halves;
  product.pairs = pairs.data;
  product.pairs_stride = pairs.stride;
  product.stored_cols = pairs.cols;
  if (add.rows > 0) product.add = add.data;
  product.sums_stride = add.stride;
  product.prefetch = prefetch;
  multiply(product);
}

/// pairs = a b, and a times the columns `next` further on, each row times its scale if there are
/// any, rounded, in the lower and upper halves.
inline void multiply_into_pairs(const VnniPanel& pairs, const LeftFactor& a, const VnniPanel& b,
                                const float* scales, Index next, Prefetch* prefetch) {
  PairProduct product = product_of(a, b);
  product.into = PairSums::pairs;
  product.scale = scales;
  product.next = next;
  product.pairs = pairs.data;
  product.pairs_stride = pairs.stride;
  product.prefetch = prefetch;
  multiply(product);
}

/// pairs = lower and upper, rounded. Columns are whole vectors.
MHLA_OUT_OF_LINE inline void pair_sums(const VnniPanel& pairs, const Panel<float>& lower,
                                       const Panel<float>& upper) {
  pair_functions<float>().pair_sums(lower.rows, lower.cols, lower.data, upper.data, lower.stride,
                                    pairs.data, pairs.stride);
}

/// The inverse, without its rounding.
MHLA_OUT_OF_LINE inline void unpair(const Panel<float>& lower, const Panel<float>& upper,
                                    const VnniPanel& pairs) {
  for (Index r = 0; r < lower.rows; ++r)
    pair_functions<float>().unpair(lower.cols, pairs.row(r), lower.row(r), upper.row(r));
}

/// Rows of a tensor = a b, each times its scale unless `scales` is empty, rounded.
inline void multiply_into_rows(const Rows<BFloat16>& rows, const LeftFactor& a, const VnniPanel& b,
                               Span<const float> scales, Prefetch* prefetch) {
  PairProduct product = product_of(a, b);
  product.into = PairSums::stored;
  product.stored = rows;
  product.stored_cols = b.cols;
  if (scales.size > 0) product.scale = scales.data;
  product.prefetch = prefetch;
  multiply(product);
}

/// Half `half` of pairs = sums, rounded.
MHLA_OUT_OF_LINE inline void round_into_half(const VnniPanel& pairs, int half,
                                             const Panel<float>& sums) {
  PairProduct product{.rows = sums.rows,
                      .cols = sums.cols,
                      .into = half == 0 ? PairSums::lower_halves : PairSums::upper_halves,
                      .sums_stride = sums.stride,
                      .pairs = pairs.data,
                      .pairs_stride = pairs.stride,
                      .stored_cols = pairs.cols,
                      .add = sums.data};
  pair_functions<float>().finish(product);
}

/// Rows of a tensor = sums, each times its scale unless `scales` is empty, rounded.
MHLA_OUT_OF_LINE inline void store_sums(const Rows<BFloat16>& rows, Index cols,
                                        Span<const float> scales, const Panel<float>& sums) {
  PairProduct product{.rows = sums.rows,
                      .cols = sums.cols,
                      .into = PairSums::stored,
                      .sums_stride = sums.stride,
                      .stored = rows,
                      .stored_cols = cols,
                      .scale = scales.size > 0 ? scales.data : nullptr,
                      .add = sums.data};
  pair_functions<float>().finish(product);
}

/// Whether no element is infinite or NaN.
MHLA_OUT_OF_LINE inline bool all_finite(const VnniPanel& pairs) {
  return pair_functions<float>().all_finite(pairs.pairs, whole_columns(pairs.cols), pairs.data,
                                            pairs.stride);
}

/// Which terms the rows of a triangular product have: row r those before `first` + r, or (future)
/// those from there on.
struct Triangle {
  Index first;
  bool future = false;

  /// The pairs that rows [row, row + rows) have together.
  Index begin(Index row) const { return future ? (first + row) / 2 : 0; }
  Index end(Index row, Index rows, Index pairs) const {
    return future ? pairs : pairs_of(first + row + rows - 1);
  }
  /// The triangle of rows from `row` on and of pairs from `begin` on.
  Triangle of(Index row, Index begin) const { return {first + row - 2 * begin, future}; }
};

/// 0 in the columns, here those of tokens, that a row lacks but its strip has.
inline void clear_rest(const PairedRows& scores, Triangle triangle) {
  for (Index row = 0; row < scores.rows; row += triangle_rows) {
    const Index rows = scores.rows - row < triangle_rows ? scores.rows - row : triangle_rows;
    for (Index r = row; r < row + rows; ++r) {
      auto* const elements = reinterpret_cast<BFloat16*>(scores.row(r));
      const Index seen = triangle.first + r;
      const Index begin = triangle.future ? 2 * triangle.begin(row) : seen;
      const Index end = triangle.future ? seen : 2 * triangle.end(row, rows, scores.stride);
      for (Index t = begin; t < end; ++t) elements[t] = BFloat16{};
    }
  }
}

/// Scores of a tile's tokens, [rows of a, cols of b] in pairs of columns; an odd last column's
/// partner is 0.
inline PairedRows multiply_scores(Span<Pair> memory, const LeftFactor& a, const VnniPanel& b) {
  const PairedRows scores = paired_rows(memory.data, a.rows, b.cols);
  if (b.cols % 2 != 0)
    for (Index r = 0; r < a.rows; ++r) scores.row(r)[scores.stride - 1] = 0;
  multiply_into_rows(Rows<BFloat16>{reinterpret_cast<BFloat16*>(scores.data), 2 * scores.stride}, a,
                     b, {}, nullptr);
  return scores;
}

/// sums (+)= a b for a strip of a triangle whose b is not finite: row after row, of copies of b
/// with 0 where the row sees nothing, so that a NaN there does not spread. The bits are those of
/// one product, of an a with 0 there: a copy is as deep as the strip, or a multiple of what an
/// instruction takes at once.
MHLA_OUT_OF_LINE inline void multiply_triangle(const Panel<float>& sums, const LeftFactor& a,
                                               const VnniPanel& b, Triangle triangle, Into into) {
  constexpr Index cols = tile_side;
  constexpr Index piece = 4 * tile_side;  // pairs
  Pair copy[2 * piece * cols];
  const auto sees = [&](Index row, Index term) {
    return (term < triangle.first + row) != triangle.future;
  };
  for (Index r = 0; r < sums.rows; ++r)
    for (Index col = 0; col < whole_columns(b.cols); col += cols) {
      Index done = 0;
      do {
        const Index count = b.pairs - done < 2 * piece ? b.pairs - done : piece;
        for (Index k = 0; k < count; ++k) {
          const Index term = 2 * (done + k);
          const Pair seen = (sees(r, term) ? 0xffffu : 0u) | (sees(r, term + 1) ? 0xffff0000u : 0u);
          for (Index c = 0; c < cols; ++c) copy[k * cols + c] = b.row(done + k)[col + c] & seen;
        }
        multiply(Panel<float>{sums.row(r) + col, 1, cols, cols}, a.range(r, 1, done, done + count),
                 VnniPanel{copy, count, cols, cols}, done == 0 ? into : Into::add);
        done += count;
      } while (done < b.pairs);
    }
}

/// sums += scores b for a triangle of a tile's tokens.
inline void add_triangle(const Panel<float>& sums, const PairedRows& scores, const VnniPanel& b,
                         Triangle triangle) {
  clear_rest(scores, triangle);
  const bool finite = all_finite(b);
  for (Index row = 0; row < scores.rows; row += triangle_rows) {
    const Index rows = scores.rows - row < triangle_rows ? scores.rows - row : triangle_rows;
    const Index begin = triangle.begin(row);
    const Index end = triangle.end(row, rows, b.pairs);
    const Panel<float> to = sums.row_range(row, rows);
    const LeftFactor a = LeftFactor(scores).range(row, rows, begin, end);
    if (finite) {
      multiply(to, a, b.range(begin, end), Into::add);
    } else {
      multiply_triangle(to, a, b.range(begin, end), triangle.of(row, begin), Into::add);
    }
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
