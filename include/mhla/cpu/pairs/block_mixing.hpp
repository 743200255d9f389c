// SPDX-License-Identifier: MIT
// Mixing (block_mixing.hpp) of summaries in pairs of blocks into summaries in pairs of their own
// rows, and its adjoint in the matrix.
#pragma once

#include <mhla/cpu/block_mixing.hpp>
#include <mhla/cpu/pairs/memory.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::pairs {

/// What one mixing matrix, or a part of it, contributes: `weights` [blocks of the group, blocks
/// mixed].
struct MixingTerms {
  LeftFactor weights;
  PairedSummaries summaries;
  const float* scales;  // [blocks of the group], of the weights' rows; null: 1
};

/// Converts sums from one matrix's scales of rows to those of the next, if there is one.
inline void rescale(const Panel<float>& sums, const float* scales, const float* next) {
  for (Index r = 0; r < sums.rows; ++r)
    scale_rows(sums.row_range(r, 1), next == nullptr ? scales[r] : scales[r] / next[r]);
}

/// mixed = the sum of scaled weights times summaries over all matrices, of all blocks or of those
/// that a triangle's rows have; terms_of(matrix) are MixingTerms. `sums` has room for
/// 2 * mixed_at_once floats of each row.
template <class TermsOf>
void mix(const MixedSummaries& mixed, Index matrices, const TermsOf& terms_of, bool all,
         Triangle triangle, Span<float> sums) {
  const Index half = mixed.shape.half();
  // Of a triangle two tiles' rows: a third would cost more than the zeros beside the diagonal.
  const Index strip_rows = all ? mixed.blocks : 12;
  const Index pairs = pairs_of(terms_of(0).summaries.blocks);
  for (Index row = 0; row < mixed.blocks; row += strip_rows) {
    const Index rows = (std::min)(strip_rows, mixed.blocks - row);
    const Index begin = all ? 0 : triangle.begin(row);
    const Index end = all ? pairs : triangle.end(row, rows, pairs);
    bool in_strips = true;
    for (Index matrix = 0; matrix < matrices && !all && in_strips; ++matrix)
      in_strips = terms_of(matrix).summaries.are_finite(begin, end);
    const auto scales_of = [&](Index matrix) {
      const float* const scales = matrix < matrices ? terms_of(matrix).scales : nullptr;
      return scales == nullptr ? nullptr : scales + row;
    };
    for (Index at = 0; at < half; at += mixed_at_once) {
      const Index cols = (std::min)(mixed_at_once, whole_columns(half - at));
      const VnniPanel to = mixed.elements(at, cols).range(row, row + rows);
      if (matrices == 1 && in_strips) {
        const MixingTerms one = terms_of(0);
        const VnniPanel from = one.summaries.elements(at, cols).range(begin, end);
        Prefetch ahead(nullptr, from.pairs);
        constexpr Index bytes{sizeof(Pair)};
        for (const Index next : {Index{0}, half})
          if (at + cols < half)
            ahead.add(from.data + next + cols, from.stride * bytes, cols * bytes);
        multiply(PairProduct{.next = half,
                             .into = PairSums::pairs,
                             .pairs = to.data,
                             .pairs_stride = to.stride,
                             .scale = scales_of(0)},
                 one.weights.range(row, rows, begin, end), from, &ahead);
        continue;
      }
      const Panel<float> lower{sums.data, rows, cols, mixed_at_once};
      const Panel<float> upper{lower.row(rows), rows, cols, mixed_at_once};
      for (Index matrix = 0; matrix < matrices; ++matrix) {
        const MixingTerms terms = terms_of(matrix);
        const LeftFactor weights = terms.weights.range(row, rows, begin, end);
        const Into into = matrix == 0 ? Into::overwrite : Into::add;
        for (const Panel<float>* part : {&lower, &upper}) {
          const VnniPanel from =
              terms.summaries.elements(part == &lower ? at : half + at, cols).range(begin, end);
          if (in_strips)
            multiply(*part, weights, from, into);
          else
            multiply_triangle(*part, weights, from, triangle.of(row, begin), into);
          if (terms.scales != nullptr) rescale(*part, scales_of(matrix), scales_of(matrix + 1));
        }
      }
      pair_sums(to, lower, upper);
    }
  }
}

/// dm_ib += <dS~_i, S_b> for b <= i - lag, of columns of dm from b = `first` on, which is even.
//                                                                        // [query blocks, columns]
MHLA_OUT_OF_LINE inline void mix_matrix_gradient(const PairedSummaries& grad_mixed,
                                                 const PairedSummaries& summaries, Index first,
                                                 Index lag, const Panel<float>& columns) {
  constexpr Index piece = 4096;
  constexpr Index step = 32;  // elements that a tile takes at once
  const PairFunctions<float>& kernels = pair_functions<float>();
  const Index elements = ceil_div(grad_mixed.shape.rows * grad_mixed.shape.cols, step) * step;
  const Index stride = PairedSummaries::stride(summaries.shape);
  const Index end = first + columns.cols;
  for (Index at = 0; at < elements; at += piece) {
    const Index length = (std::min)(piece, elements - at);
    const auto tile = [&](Index i, Index b, Index blocks) {
      if (b > i + blocks - 1 - lag) return;
      float products[4 * 4] = {};
      (blocks == 2 ? kernels.dot_one : kernels.dot_two)(length, grad_mixed.with(i).data + at,
                                                        stride, summaries.with(b).data + at, stride,
                                                        products, blocks);
      for (Index r = i; r < (std::min)(i + blocks, grad_mixed.blocks); ++r)
        for (Index c = b; c < (std::min)(b + blocks, end); ++c)
          if (c <= r - lag) columns.row(r)[c - first] += products[(r - i) * blocks + c - b];
    };
    const Index whole_rows = grad_mixed.blocks / 4 * 4;
    const Index whole_end = first + columns.cols / 4 * 4;
    for (Index i = 0; i < whole_rows; i += 4)
      for (Index b = first; b < whole_end; b += 4) tile(i, b, 4);
    for (Index i = 0; i < grad_mixed.blocks; i += 2)
      for (Index b = i < whole_rows ? whole_end : first; b < end; b += 2) tile(i, b, 2);
  }
}

}  // namespace cpu::pairs

MHLA_NAMESPACE_END
