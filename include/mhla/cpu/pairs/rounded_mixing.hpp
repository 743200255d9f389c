// SPDX-License-Identifier: MIT
// mix in bfloat16, as the products that mix summaries with Precision::fast take it.
#pragma once

#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pairs/panel.hpp>
#include <mhla/policy/causality.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Rows of all matrices, of pairs of elements, in one part or two.
struct RoundedRows {
  Index matrices = 0;
  Index rows = 0;
  Index cols = 0;
  Span<Pair> pairs{};    // [parts, matrices, rows, pairs of cols]
  Span<float> scales{};  // [matrices, rows]: what rows in one part are times
  bool is_scaled = false;

  RoundedRows() = default;
  RoundedRows(Arena& arena, Index num_matrices, Index num_rows, Index num_cols)
      : matrices(num_matrices), rows(num_rows), cols(num_cols) {
    scales = arena.take<float>(checked_mul(matrices, rows));
    pairs = arena.take<Pair>(checked_mul(checked_mul(2, scales.size), pairs_of(cols)));
  }

  Pair* row(Index part, Index matrix, Index r) const {
    return pairs.data + ((part * matrices + matrix) * rows + r) * pairs_of(cols);
  }
  BFloat16* elements(Index part, Index matrix, Index r) const {
    return reinterpret_cast<BFloat16*>(row(part, matrix, r));
  }
  /// Zeros what an odd last column is paired with, as the elements that follow are written.
  void set_zero() const { std::fill_n(elements(0, 0, 0), 2 * pairs.size, BFloat16{}); }
  /// Some rows of a part of a matrix's corner.                        // [count, pairs of columns]
  PairedRows of(Index part, Index matrix, Index first, Index count, Index columns) const {
    return {row(part, matrix, first), count, columns, pairs_of(cols)};
  }
  /// What rows are times, from one of a matrix on, or nothing.
  const float* scales_of(Index matrix, Index r) const {
    return is_scaled ? &scales[matrix * rows + r] : nullptr;
  }

  /// Fits the scales. Returns whether errors of the first part, which is element(matrix, row,
  /// column) rounded, average out then: 1.8e-3 of a row and more is what few different elements
  /// lose.
  template <class Element>
  bool errors_average_out(const Element& element) {
    constexpr float most = 1.8e-3f;
    float lost = 0;
    for (Index h = 0; h < matrices; ++h)
      for (Index r = 0; r < rows; ++r)
        lost +=
            fit([&](Index c) { return element(h, r, c); }, elements(0, h, r), scales[h * rows + r]);
    return lost <= most * most * static_cast<float>(matrices * rows);
  }

 private:
  // The scale that takes back what elements lose alike by rounding: the sizes of the rounded ones
  // then add up to those of the others. Returns which share of their squares is lost nevertheless.
  template <class Element>
  float fit(const Element& element, const BFloat16* rounded, float& scale) const {
    float exact_sizes = 0;
    float rounded_sizes = 0;
    for (Index n = 0; n < cols; ++n) {
      exact_sizes += (std::abs)(element(n));
      rounded_sizes += (std::abs)(load(rounded[n]));
    }
    scale = exact_sizes / rounded_sizes;
    if (!(std::isfinite)(scale) || scale <= 0) scale = 1;
    float squares = 0;
    float lost = 0;
    for (Index n = 0; n < cols; ++n) {
      const float rest = element(n) - scale * load(rounded[n]);
      squares += element(n) * element(n);
      lost += rest * rest;
    }
    return lost > 0 && (std::isfinite)(lost / squares) ? lost / squares : 0;
  }
};

struct RoundedMixing {
  // 2, the rounded matrix and what it lacks, if so few blocks are mixed that errors of single
  // elements show, or has so few different elements. Otherwise they average out, once each row is
  // times a scale that takes back what its elements lose alike, as those of 1 / 53 do.
  Index parts = 2;
  RoundedRows queries;  // [matrices, query blocks, key blocks]
  RoundedRows keys;     // its transpose, of a backward pass
  // What key sums are mixed by, in float: if the matrix is rounded, its error then is that of
  // another matrix, and not one of weights that no longer add up to 1.
  Span<float> of_key_sums{};

  RoundedMixing() = default;
  RoundedMixing(Arena& arena, Index matrices, Index rows, Index cols, bool backward)
      : queries(arena, matrices, rows, cols),
        of_key_sums(arena.take<float>(checked_mul(matrices, checked_mul(rows, cols)))) {
    if (backward) keys = RoundedRows(arena, matrices, cols, rows);
  }

  /// What a row does not see is 0.
  template <Sight sight>
  void pack(Span<const float> mixing) {
    constexpr Index few_blocks = 16;
    const Index rows = queries.rows;
    const Index cols = queries.cols;
    const auto at = [&](Index h, Index i, Index b) { return (h * rows + i) * cols + b; };
    const auto seen = [&](Index h, Index i, Index b) {
      return sees_whole_block(sight, i, b) ? mixing[at(h, i, b)] : 0;
    };
    queries.set_zero();
    keys.set_zero();
    const auto round_part = [&](Index part, const auto& element) {
      for (Index h = 0; h < queries.matrices; ++h)
        for (Index i = 0; i < rows; ++i) {
          BFloat16* const row = queries.elements(part, h, i);
          for (Index b = 0; b < cols; ++b) {
            store(row[b], element(h, i, b));
            if (keys.rows > 0) keys.elements(part, h, b)[i] = row[b];
          }
        }
    };
    round_part(0, seen);
    const bool in_one_part =
        (std::min)(rows, cols) >= few_blocks && queries.errors_average_out(seen) &&
        keys.errors_average_out([&](Index h, Index b, Index i) { return seen(h, i, b); });
    parts = in_one_part ? 1 : 2;
    queries.is_scaled = keys.is_scaled = in_one_part;
    const auto rounded = [&](Index h, Index i, Index b) {
      return load(queries.elements(0, h, i)[b]);
    };
    std::copy_n(mixing.data, mixing.size, of_key_sums.data);  // with m_ii, the own keys' weight
    if (!in_one_part)
      return round_part(
          1, [&](Index h, Index i, Index b) { return seen(h, i, b) - rounded(h, i, b); });
    for (Index h = 0; h < queries.matrices; ++h)
      for (Index i = 0; i < rows; ++i)
        for (Index b = 0; b < cols; ++b)
          if (sees_whole_block(sight, i, b))
            of_key_sums[at(h, i, b)] = queries.scales[h * rows + i] * rounded(h, i, b);
  }
};

}  // namespace cpu

MHLA_NAMESPACE_END
