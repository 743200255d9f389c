// SPDX-License-Identifier: MIT
// The stages of MixedProduct against plain sums, and their adjoints by <J x, y> == <x, J^T y>,
// exactly: all is bilinear and made of small integers.
#include <mhla/cpu/mixed_product.hpp>

#include "tests/cpu/integer_panel.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using mhla::Into;
using panels::IntegerPanel;

constexpr Index blocks = 5;
constexpr Index offsets = 7;
constexpr Index features = 3;

}  // namespace

TEST_CASE("mixed product: R_bp = <Q_bp, z_b>, den_ip = sum_b m_ib R_bp + epsilon", "[cpu]") {
  const IntegerPanel queries(offsets, features, 1);
  const IntegerPanel key_sum(1, features, 2);
  IntegerPanel of_block(1, offsets, 3);
  mhla::cpu::own_key_sum_products<double>(queries.panel(), key_sum.row(), of_block.row());
  for (Index p = 0; p < offsets; ++p) {
    double product = 0;
    for (Index c = 0; c < features; ++c) product += queries(p, c) * key_sum(0, c);
    CHECK(of_block(0, p) == product);
  }

  const IntegerPanel mixing(blocks, blocks, 4);
  const IntegerPanel products(blocks, offsets, 5);
  IntegerPanel denominators(blocks, offsets, 6);
  constexpr double epsilon = 0.5;
  mhla::cpu::mixed_product_denominators<double>(mixing.panel(), products.panel(), epsilon,
                                                denominators.panel());
  for (Index i = 0; i < blocks; ++i)
    for (Index p = 0; p < offsets; ++p) {
      double den = epsilon;
      for (Index b = 0; b < blocks; ++b) den += mixing(i, b) * products(b, p);
      CHECK(denominators(i, p) == den);
    }
}

TEST_CASE("mixed product: adjoints in mix and in R", "[cpu]") {
  const IntegerPanel mixing(blocks, blocks, 1);
  const IntegerPanel products(blocks, offsets, 2);
  const IntegerPanel grad_denominators(blocks, offsets, 3);
  const IntegerPanel mixing_change(blocks, blocks, 4);
  const IntegerPanel product_change(blocks, offsets, 5);

  IntegerPanel change(blocks, offsets);
  mhla::cpu::mixed_product_denominators<double>(mixing_change.panel(), products.panel(), 0,
                                                change.panel());
  IntegerPanel grad_mixing(blocks, blocks);
  mhla::cpu::mixed_product_matrix_gradient<double>(grad_denominators.panel(), products.panel(),
                                                   grad_mixing.panel());
  CHECK(inner_product(change, grad_denominators) == inner_product(mixing_change, grad_mixing));

  const IntegerPanel before(blocks, blocks, 6);
  IntegerPanel sum = before;
  mhla::cpu::mixed_product_matrix_gradient<double>(grad_denominators.panel(), products.panel(),
                                                   sum.panel());
  for (Index i = 0; i < blocks; ++i)
    for (Index b = 0; b < blocks; ++b) CHECK(sum(i, b) == before(i, b) + grad_mixing(i, b));

  mhla::cpu::mixed_product_denominators<double>(mixing.panel(), product_change.panel(), 0,
                                                change.panel());
  IntegerPanel grad_products(blocks, offsets, 7);
  mhla::cpu::mixed_product_gradient<double>(mixing.panel(), grad_denominators.panel(),
                                            grad_products.panel());
  CHECK(inner_product(change, grad_denominators) == inner_product(product_change, grad_products));
}

TEST_CASE("mixed product: the adjoint in a block's own key sum, tile by tile", "[cpu]") {
  const IntegerPanel queries(offsets, features, 1);
  const IntegerPanel grad_products(1, offsets, 2);
  const IntegerPanel key_sum_change(1, features, 3);
  IntegerPanel change(1, offsets);
  mhla::cpu::own_key_sum_products<double>(queries.panel(), key_sum_change.row(), change.row());
  IntegerPanel grad_key_sum(1, features, 4);
  constexpr Index first_tile = 4;
  mhla::cpu::own_key_sum_gradient<double>(queries.panel().row_range(0, first_tile),
                                          {grad_products.row().data, first_tile},
                                          grad_key_sum.row(), Into::overwrite);
  mhla::cpu::own_key_sum_gradient<double>(
      queries.panel().row_range(first_tile, offsets - first_tile),
      {grad_products.row().data + first_tile, offsets - first_tile}, grad_key_sum.row(), Into::add);
  CHECK(inner_product(change, grad_products) == inner_product(key_sum_change, grad_key_sum));
}
