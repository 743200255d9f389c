// SPDX-License-Identifier: MIT
// Panels of bfloat16 in pairs, the factors of Precision::fast, and all products of them.
//
// A right factor's terms are its rows: VnniPanel. A left factor's are its columns (PairedRows), or
// the rows of a VnniPanel, transposed. Which terms are paired is the same in both factors of a
// product:
//   tokens and blocks   2 t and 2 t + 1
//   features            c and c + half, half = pairs_of(features)
#pragma once

#include <mhla/cpu/gemm.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// A contiguous panel for `terms` rows.
inline VnniPanel pair_panel(Pair* data, Index terms, Index cols) {
  return {data, pairs_of(terms), cols, whole_columns(cols)};
}

/// Sums of a product, [rows, whole_columns(cols)].
inline Panel<float> whole_panel(float* data, Index rows, Index cols) {
  return panel(data, rows, whole_columns(cols));
}

inline PairedRows paired_rows(Pair* data, Index rows, Index cols) {
  return {data, rows, cols, pairs_of(cols)};
}

inline float element_of(const VnniPanel& panel, Index term, Index col) {
  return load(reinterpret_cast<const BFloat16*>(panel.row(term / 2))[2 * col + term % 2]);
}

/// This machine's kernels.
template <class T>
MHLA_OUT_OF_LINE const PairFunctions<T>& pair_functions() {
  const PairFunctions<T>* functions = nullptr;
  with_pair_kernels<T>([&](auto kernels) { functions = &kernels.functions; });
  return *functions;
}

template <class Stored>
const PairFunctionsOf<float, Stored>& pair_functions_of() {
  return pair_functions<float>();
}

/// to = `rows` rows of `from`, rounded, in pairs of rows.
template <class Stored>
void pair_rows(const VnniPanel& to, Index rows, const Rows<const Stored>& from) {
  pair_functions_of<Stored>().pair_rows(to, rows, from);
}
/// Rows in pairs of features.
template <class Stored>
void pair_columns(const PairedRows& to, const Rows<const Stored>& from) {
  pair_functions_of<Stored>().pair_columns(to, from);
}

/// to = map(from), rounded, in pairs of rows; sum += its rows unless that is empty.
template <class Map, class Stored>
MHLA_OUT_OF_LINE void map_pair_rows(const Map& map, const VnniPanel& to, Index rows,
                                    const Rows<const Stored>& from, Span<float> sum) {
  with_pair_kernels<float>(
      [&](auto kernels) { kernels.template map_pair_rows<Map, Stored>(map, to, rows, from, sum); });
}

/// to = scale map(from), rounded, in pairs of columns; products_r = <scale map(from_r), weights>
/// unless that is empty.
template <class Map, class Stored>
MHLA_OUT_OF_LINE void map_pair_columns(const Map& map, float scale, const PairedRows& to,
                                       const Rows<const Stored>& from, Span<const float> weights,
                                       Span<float> products) {
  with_pair_kernels<float>([&](auto kernels) {
    kernels.template map_pair_columns<Map, Stored>(map, scale, to, from, weights, products);
  });
}

/// to [cols, rows] = from [rows, cols]^T, both in pairs of their halves.
inline void turn(const VnniPanel& to, const VnniPanel& from) {
  pair_functions<float>().turn(to, from);
}

/// to = a b, `to` being what becomes of the sums.
MHLA_OUT_OF_LINE inline void multiply(PairProduct to, const LeftFactor& a, const VnniPanel& b,
                                      Prefetch* prefetch) {
  Prefetch nothing;
  to.rows = a.rows;
  to.cols = whole_columns(b.cols);
  to.depth = b.pairs;
  to.a = a.data;
  to.a_row = a.row_stride;
  to.a_term = a.pair_stride;
  to.b = b.data;
  to.b_stride = b.stride;
  to.prefetch = prefetch == nullptr ? &nothing : prefetch;
  pair_functions<float>().multiply(to);
}
/// sums (+)= a b
inline void multiply(const Panel<float>& sums, const LeftFactor& a, const VnniPanel& b, Into into,
                     Prefetch* prefetch = nullptr) {
  multiply(PairProduct{.sums = sums.data,
                       .sums_stride = sums.stride,
                       .add = into == Into::add ? sums.data : nullptr},
           a, b, prefetch);
}
/// to = sums
MHLA_OUT_OF_LINE inline void finish(PairProduct to, const Panel<float>& sums) {
  to.rows = sums.rows;
  to.cols = sums.cols;
  to.sums_stride = sums.stride;
  to.add = sums.data;
  pair_functions<float>().finish(to);
}

/// `cols` columns of a tensor's rows: sums, each row times its scale unless `scales` is empty,
/// rounded.
inline PairProduct stored_in(const Rows<BFloat16>& rows, Index cols, Span<const float> scales) {
  return {.into = PairSums::stored,
          .stored = rows,
          .stored_cols = cols,
          .scale = scales.size > 0 ? scales.data : nullptr};
}

/// pairs = lower and upper, rounded, up to whole_columns.
inline void pair_sums(const VnniPanel& pairs, const Panel<float>& lower,
                      const Panel<float>& upper) {
  pair_functions<float>().pair_sums(pairs, lower.data, upper.data, lower.stride);
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

/// Scores of a tile's tokens, [rows of a, cols of b] in pairs of columns, each row times its scale
/// unless `scales` is empty; an odd last column's partner is 0.
inline PairedRows multiply_scores(Span<Pair> memory, const LeftFactor& a, const VnniPanel& b,
                                  Span<const float> scales = {}) {
  const PairedRows scores = paired_rows(memory.data, a.rows, b.cols);
  if (b.cols % 2 != 0)
    for (Index r = 0; r < a.rows; ++r) scores.row(r)[scores.stride - 1] = 0;
  multiply(stored_in({reinterpret_cast<BFloat16*>(scores.data), 2 * scores.stride}, b.cols, scales),
           a, b, nullptr);
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
  const bool finite = pair_functions<float>().all_finite(b);
  for (Index row = 0; row < scores.rows; row += triangle_rows) {
    const Index rows = scores.rows - row < triangle_rows ? scores.rows - row : triangle_rows;
    const Index begin = triangle.begin(row);
    const Index end = triangle.end(row, rows, b.pairs);
    const Panel<float> to = sums.row_range(row, rows);
    const LeftFactor a = scores.factor().range(row, rows, begin, end);
    if (finite) {
      multiply(to, a, b.range(begin, end), Into::add);
    } else {
      multiply_triangle(to, a, b.range(begin, end), triangle.of(row, begin), Into::add);
    }
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
