// SPDX-License-Identifier: MIT
// Block summaries against plain sums, and their adjoints by <J x, y> == <x, J^T y>. Everything is
// bilinear and made of small integers, so that both hold exactly.
#include <mhla/cpu/block_summary.hpp>

#include "tests/cpu/integer_panel.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using mhla::Span;
using mhla::cpu::Into;
using panels::IntegerPanel;

constexpr Index features = 5;
constexpr Index value_dim = 7;

}  // namespace

TEST_CASE("block summary: tiles add up to S = K^r^T V and z = K^T 1", "[cpu]") {
  IntegerPanel summary(features, value_dim, 1);  // what it holds is replaced
  IntegerPanel key_sum(1, features, 2);
  IntegerPanel expected_summary(features, value_dim);
  IntegerPanel expected_key_sum(1, features);
  Index first = 0;
  for (const Index tokens : {4, 1, 30}) {
    const IntegerPanel keys(tokens, features, 3 + static_cast<unsigned>(tokens));
    const IntegerPanel rotated(tokens, features, 4 + static_cast<unsigned>(tokens));
    const IntegerPanel values(tokens, value_dim, 5 + static_cast<unsigned>(tokens));
    mhla::cpu::summarize<double>(keys.panel(), rotated.panel(), values.panel(), summary.panel(),
                                 key_sum.row(), first == 0 ? Into::overwrite : Into::add);
    for (Index t = 0; t < tokens; ++t)
      for (Index c = 0; c < features; ++c) {
        expected_key_sum(0, c) += keys(t, c);
        for (Index e = 0; e < value_dim; ++e)
          expected_summary(c, e) += rotated(t, c) * values(t, e);
      }
    CHECK(summary == expected_summary);
    CHECK(key_sum == expected_key_sum);
    first += tokens;
  }
}

TEST_CASE("block summary: without a normalizer there is no key sum", "[cpu]") {
  const IntegerPanel keys(3, features, 1);
  const IntegerPanel values(3, value_dim, 2);
  IntegerPanel summary(features, value_dim);
  mhla::cpu::summarize<double>(keys.panel(), keys.panel(), values.panel(), summary.panel(), {},
                               Into::overwrite);
  CHECK(summary(2, 3) ==
        keys(0, 2) * values(0, 3) + keys(1, 2) * values(1, 3) + keys(2, 2) * values(2, 3));
}

TEST_CASE("block summary: adjoints in keys and values", "[cpu]") {
  constexpr Index tokens = 11;
  const IntegerPanel rotated(tokens, features, 1);
  const IntegerPanel values(tokens, value_dim, 2);
  const IntegerPanel key_change(tokens, features, 3);
  const IntegerPanel value_change(tokens, value_dim, 4);
  const IntegerPanel grad_summary(features, value_dim, 5);

  IntegerPanel change(features, value_dim);
  IntegerPanel grad_rotated(tokens, features, 6);
  mhla::cpu::summarize<double>(key_change.panel(), key_change.panel(), values.panel(),
                               change.panel(), {}, Into::overwrite);
  mhla::cpu::summarize_key_gradient<double>(values.panel(), grad_summary.panel(),
                                            grad_rotated.panel());
  CHECK(inner_product(change, grad_summary) == inner_product(key_change, grad_rotated));

  IntegerPanel grad_values(tokens, value_dim, 7);
  mhla::cpu::summarize<double>(rotated.panel(), rotated.panel(), value_change.panel(),
                               change.panel(), {}, Into::overwrite);
  mhla::cpu::summarize_value_gradient<double>(rotated.panel(), grad_summary.panel(),
                                              grad_values.panel());
  CHECK(inner_product(change, grad_summary) == inner_product(value_change, grad_values));
}
