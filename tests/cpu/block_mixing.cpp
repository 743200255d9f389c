// SPDX-License-Identifier: MIT
// Mixing of summaries against plain sums, for a group of rows of a rectangular matrix or of a
// causal one's past, and its adjoints by <J x, y> == <x, J^T y>, exactly: all is bilinear and made
// of small integers.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <mhla/cpu/block_mixing.hpp>
#include <vector>

#include "tests/cpu/integer_panel.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using mhla::Into;
using mhla::cpu::Panel;
using panels::IntegerPanel;

constexpr Index query_blocks = 8;
constexpr Index key_blocks = 5;
constexpr Index blocks = 17;  // of a causal matrix
constexpr Index width = 41;

// Room for a group's part of any matrix here.
struct Scratch {
  std::vector<double> memory = std::vector<double>(blocks * blocks);
  operator mhla::Span<double>() {  // NOLINT: stands for its memory
    return {memory.data(), static_cast<Index>(memory.size())};
  }
};

// Summaries lie farther apart than they are long. Rows of a panel with sentinels between them.
constexpr Index stride = width + 7;
constexpr double sentinel = 77777;
class StridedPanel {
 public:
  explicit StridedPanel(const IntegerPanel& from)
      : rows_(from.panel().rows), memory_(static_cast<std::size_t>(rows_ * stride), sentinel) {
    for (Index r = 0; r < rows_; ++r) std::copy_n(from.panel().row(r), width, panel().row(r));
  }
  Panel<double> panel() { return {memory_.data(), rows_, width, stride}; }
  bool holds(const IntegerPanel& expected) { return memory_ == StridedPanel(expected).memory_; }

 private:
  Index rows_;
  std::vector<double> memory_;
};

}  // namespace

TEST_CASE("block mixing: S~_i = sum_b m_ib S_b for the rows given", "[cpu]") {
  const IntegerPanel mixing(query_blocks, key_blocks, 1);
  const IntegerPanel summaries(key_blocks, width, 2);
  constexpr Index first = 2;
  constexpr Index rows = 3;
  IntegerPanel mixed(rows, width, 3);
  mhla::cpu::mix<double>(mixing.panel().row_range(first, rows), summaries.panel(), mixed.panel());
  IntegerPanel expected(rows, width);
  for (Index i = 0; i < rows; ++i)
    for (Index b = 0; b < key_blocks; ++b)
      for (Index c = 0; c < width; ++c) expected(i, c) += mixing(first + i, b) * summaries(b, c);
  CHECK(mixed == expected);

  StridedPanel from(summaries);
  StridedPanel to(IntegerPanel(rows, width, 3));
  mhla::cpu::mix<double>(mixing.panel().row_range(first, rows), from.panel(), to.panel());
  CHECK(to.holds(expected));
}

TEST_CASE("block mixing: adjoint in the summaries of a group of key blocks", "[cpu]") {
  const IntegerPanel mixing(query_blocks, key_blocks, 1);
  const IntegerPanel grad_mixed(query_blocks, width, 2);
  const Index first = GENERATE(0, 1, 3);
  constexpr Index rows = 2;
  // A change of those key blocks alone.
  IntegerPanel change(key_blocks, width);
  const IntegerPanel group_change(rows, width, 3);
  for (Index b = 0; b < rows; ++b)
    for (Index c = 0; c < width; ++c) change(first + b, c) = group_change(b, c);
  IntegerPanel mixed_change(query_blocks, width);
  mhla::cpu::mix<double>(mixing.panel(), change.panel(), mixed_change.panel());

  IntegerPanel grad(rows, width, 4);
  mhla::cpu::mix_summary_gradient<double>(mixing.panel(), first, grad_mixed.panel(), grad.panel(),
                                          Into::overwrite);
  CHECK(inner_product(mixed_change, grad_mixed) == inner_product(group_change, grad));

  const IntegerPanel before(rows, width, 5);
  IntegerPanel sum = before;
  mhla::cpu::mix_summary_gradient<double>(mixing.panel(), first, grad_mixed.panel(), sum.panel(),
                                          Into::add);
  for (Index b = 0; b < rows; ++b)
    for (Index c = 0; c < width; ++c) CHECK(sum(b, c) == before(b, c) + grad(b, c));

  StridedPanel from(grad_mixed);
  StridedPanel to(before);
  mhla::cpu::mix_summary_gradient<double>(mixing.panel(), first, from.panel(), to.panel(),
                                          Into::add);
  CHECK(to.holds(sum));
}

TEST_CASE("block mixing: the adjoint in the matrix adds <dS~_i, S_b>", "[cpu]") {
  const IntegerPanel mixing_change(query_blocks, key_blocks, 1);
  const IntegerPanel summaries(key_blocks, width, 2);
  const IntegerPanel grad_mixed(query_blocks, width, 3);
  IntegerPanel mixed_change(query_blocks, width);
  mhla::cpu::mix<double>(mixing_change.panel(), summaries.panel(), mixed_change.panel());

  IntegerPanel grad(query_blocks, key_blocks);
  mhla::cpu::mix_matrix_gradient<double>(grad_mixed.panel(), summaries.panel(), grad.panel(),
                                         query_blocks);
  CHECK(inner_product(mixed_change, grad_mixed) == inner_product(mixing_change, grad));

  const IntegerPanel before(query_blocks, key_blocks, 4);
  IntegerPanel sum = before;
  mhla::cpu::mix_matrix_gradient<double>(grad_mixed.panel(), summaries.panel(), sum.panel(),
                                         query_blocks);
  for (Index i = 0; i < query_blocks; ++i)
    for (Index b = 0; b < key_blocks; ++b) CHECK(sum(i, b) == before(i, b) + grad(i, b));
}

// ---- The past of a causal matrix: b <= i - lag

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// Random entries where b <= i - lag, NaN elsewhere: what lies there must not be read.
IntegerPanel past_of(Index lag, std::uint64_t seed) {
  IntegerPanel mixing(blocks, blocks, seed);
  for (Index i = 0; i < blocks; ++i)
    for (Index b = 0; b < blocks; ++b)
      if (b > i - lag) mixing(i, b) = not_a_number;
  return mixing;
}

}  // namespace

TEST_CASE("block mixing: the past of a group of rows, and nothing of what follows", "[cpu]") {
  const Index lag = GENERATE(0, 1);
  const IntegerPanel mixing = past_of(lag, 1);
  const IntegerPanel summaries(blocks, width, 2);
  for (Index first = 0; first < blocks; ++first)
    for (Index rows = 1; first + rows <= blocks; ++rows) {
      IntegerPanel seen = summaries;  // the last row sees blocks up to its own, less the lag
      for (Index b = first + rows - lag; b < blocks; ++b)
        for (Index c = 0; c < width; ++c) seen(b, c) = not_a_number;
      IntegerPanel mixed(rows, width, 3);
      mhla::cpu::mix_past<double>(mixing.panel().row_range(first, rows), first, lag, seen.panel(),
                                  mixed.panel());
      IntegerPanel expected(rows, width);
      for (Index i = 0; i < rows; ++i)
        for (Index b = 0; b <= first + i - lag; ++b)
          for (Index c = 0; c < width; ++c)
            expected(i, c) += mixing(first + i, b) * summaries(b, c);
      CHECK(mixed == expected);
      StridedPanel from(seen);
      StridedPanel to(IntegerPanel(rows, width, 3));
      mhla::cpu::mix_past<double>(mixing.panel().row_range(first, rows), first, lag, from.panel(),
                                  to.panel());
      CHECK(to.holds(expected));
    }
}

TEST_CASE("block mixing: the past's adjoint in the summaries of a group of key blocks", "[cpu]") {
  const Index lag = GENERATE(0, 1);
  const IntegerPanel mixing = past_of(lag, 1);
  const IntegerPanel grad_mixed(blocks, width, 2);
  for (Index first = 0; first < blocks; ++first)
    for (Index rows = 1; first + rows <= blocks; ++rows) {
      CAPTURE(lag, first, rows);
      IntegerPanel seen = grad_mixed;  // the first row is seen by blocks from its own on, plus lag
      for (Index i = 0; i < first + lag; ++i)
        for (Index c = 0; c < width; ++c) seen(i, c) = not_a_number;
      IntegerPanel expected(rows, width);
      for (Index b = 0; b < rows; ++b)
        for (Index i = first + b + lag; i < blocks; ++i)
          for (Index c = 0; c < width; ++c)
            expected(b, c) += mixing(i, first + b) * grad_mixed(i, c);
      IntegerPanel grad(rows, width, 4);
      StridedPanel from(seen);
      StridedPanel to(grad);
      mhla::cpu::mix_past_summary_gradient<double>(mixing.panel(), first, lag, seen.panel(),
                                                   grad.panel(), Into::overwrite);
      CHECK(grad == expected);
      mhla::cpu::mix_past_summary_gradient<double>(mixing.panel(), first, lag, from.panel(),
                                                   to.panel(), Into::overwrite);
      CHECK(to.holds(expected));
      mhla::cpu::mix_past_summary_gradient<double>(mixing.panel(), first, lag, seen.panel(),
                                                   grad.panel(), Into::add);
      for (Index b = 0; b < rows; ++b)
        for (Index c = 0; c < width; ++c) expected(b, c) *= 2;
      CHECK(grad == expected);
    }
}

TEST_CASE("block mixing: the past's adjoint in the matrix leaves the rest of it alone", "[cpu]") {
  const Index lag = GENERATE(0, 1);
  const IntegerPanel summaries(blocks, width, 2);
  const IntegerPanel grad_mixed(blocks, width, 3);
  Scratch scratch;
  for (Index first = 0; first < blocks; ++first)
    for (Index count = 1; first + count <= blocks; ++count) {
      CAPTURE(lag, first, count);
      IntegerPanel expected(blocks, blocks, 4);
      IntegerPanel grad = expected;
      for (Index i = 0; i < blocks; ++i)
        for (Index b = first; b < first + count && b <= i - lag; ++b)
          for (Index c = 0; c < width; ++c) expected(i, b) += grad_mixed(i, c) * summaries(b, c);
      mhla::cpu::mix_past_matrix_gradient<double>(
          grad_mixed.panel(), {0, grad_mixed.panel().rows}, first, lag,
          summaries.panel().row_range(first, count), grad.panel().col_range(first, count), scratch);
      CHECK(grad == expected);
    }
}
