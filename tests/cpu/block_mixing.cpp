// SPDX-License-Identifier: MIT
// Mixing of summaries against plain sums, for a group of rows of a rectangular matrix, and its
// adjoints by <J x, y> == <x, J^T y>, exactly: all is bilinear and made of small integers.
#include <mhla/cpu/block_mixing.hpp>

#include "tests/cpu/integer_panel.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using mhla::cpu::Into;
using mhla::cpu::Panel;
using panels::IntegerPanel;

constexpr Index query_blocks = 8;
constexpr Index key_blocks = 5;
constexpr Index width = 23;

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
}

TEST_CASE("block mixing: the adjoint in the matrix adds <dS~_i, S_b>", "[cpu]") {
  const IntegerPanel mixing_change(query_blocks, key_blocks, 1);
  const IntegerPanel summaries(key_blocks, width, 2);
  const IntegerPanel grad_mixed(query_blocks, width, 3);
  IntegerPanel mixed_change(query_blocks, width);
  mhla::cpu::mix<double>(mixing_change.panel(), summaries.panel(), mixed_change.panel());

  IntegerPanel grad(query_blocks, key_blocks);
  mhla::cpu::mix_matrix_gradient<double>(grad_mixed.panel(), summaries.panel(), grad.panel());
  CHECK(inner_product(mixed_change, grad_mixed) == inner_product(mixing_change, grad));

  const IntegerPanel before(query_blocks, key_blocks, 4);
  IntegerPanel sum = before;
  mhla::cpu::mix_matrix_gradient<double>(grad_mixed.panel(), summaries.panel(), sum.panel());
  for (Index i = 0; i < query_blocks; ++i)
    for (Index b = 0; b < key_blocks; ++b) CHECK(sum(i, b) == before(i, b) + grad(i, b));
}
