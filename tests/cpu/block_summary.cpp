// SPDX-License-Identifier: MIT
// Block summaries against plain sums, and their adjoints by <J x, y> == <x, J^T y>. Everything is
// bilinear and made of small integers, so that both hold exactly.
#include <cstddef>
#include <mhla/cpu/block_summary.hpp>
#include <vector>

#include "tests/cpu/integer_panel.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace mhla;
using mhla::cpu::Orientation;
using panels::IntegerPanel;

constexpr Index features = 5;
constexpr Index value_dim = 7;

}  // namespace

TEST_CASE("block summary: tiles add up to S = K^r^T V, or S^T, and z = K^T 1", "[cpu]") {
  IntegerPanel summary(features, value_dim, 1);  // what it holds is replaced
  IntegerPanel transposed(value_dim, features, 1);
  IntegerPanel key_sum(1, features, 2);
  IntegerPanel expected_summary(features, value_dim);
  IntegerPanel expected_key_sum(1, features);
  const IntegerPanel all_values(70, value_dim, 5);  // of which a tile takes some, last to first
  Index first = 0;
  for (const Index tokens : {4, 1, 30}) {
    const IntegerPanel keys(tokens, features, 3 + static_cast<unsigned>(tokens));
    const IntegerPanel rotated(tokens, features, 4 + static_cast<unsigned>(tokens));
    std::vector<Index> places;
    for (Index t = 0; t < tokens; ++t) places.push_back(2 * (tokens - t) + first % 2);
    const mhla::cpu::Rows<const double> values{all_values.panel().data, value_dim, places.data()};
    const Into into = first == 0 ? Into::overwrite : Into::add;
    const auto add = [&](Orientation orientation, IntegerPanel& to) {
      mhla::cpu::summarize<double>(keys.panel(), rotated.panel(), values, orientation, to.panel(),
                                   {key_sum.row()}, into, nullptr);
    };
    const IntegerPanel before = key_sum;
    add(Orientation::transposed, transposed);
    key_sum = before;
    add(Orientation::straight, summary);
    for (Index t = 0; t < tokens; ++t)
      for (Index c = 0; c < features; ++c) {
        expected_key_sum(0, c) += keys(t, c);
        for (Index e = 0; e < value_dim; ++e)
          expected_summary(c, e) +=
              rotated(t, c) * all_values(places[static_cast<std::size_t>(t)], e);
      }
    CHECK(summary == expected_summary);
    for (Index c = 0; c < features; ++c)
      for (Index e = 0; e < value_dim; ++e) CHECK(transposed(e, c) == expected_summary(c, e));
    CHECK(key_sum == expected_key_sum);
    first += tokens;
  }
}

TEST_CASE("block summary: without a normalizer there is no key sum", "[cpu]") {
  const IntegerPanel keys(3, features, 1);
  const IntegerPanel values(3, value_dim, 2);
  IntegerPanel summary(features, value_dim);
  mhla::cpu::summarize<double>(keys.panel(), keys.panel(), values.panel().placed(),
                               Orientation::straight, summary.panel(), {}, Into::overwrite,
                               nullptr);
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
  IntegerPanel grad_transposed(value_dim, features);
  for (Index c = 0; c < features; ++c)
    for (Index e = 0; e < value_dim; ++e) grad_transposed(e, c) = grad_summary(c, e);

  IntegerPanel change(features, value_dim);
  IntegerPanel grad_rotated(tokens, features, 6);
  const auto summarize = [&](const IntegerPanel& k, const IntegerPanel& v) {
    mhla::cpu::summarize<double>(k.panel(), k.panel(), v.panel().placed(), Orientation::straight,
                                 change.panel(), {}, Into::overwrite, nullptr);
  };
  summarize(key_change, values);
  mhla::cpu::summarize_key_gradient<double>(values.panel(), grad_transposed.panel(),
                                            grad_rotated.panel(), nullptr);
  CHECK(inner_product(change, grad_summary) == inner_product(key_change, grad_rotated));

  // Values' gradients may be written where they belong: here last to first, with gaps.
  IntegerPanel grad_values(2 * tokens, value_dim);
  std::vector<Index> places;
  for (Index t = 0; t < tokens; ++t) places.push_back(2 * (tokens - 1 - t));
  IntegerPanel changes_there(2 * tokens, value_dim);
  for (Index t = 0; t < tokens; ++t)
    for (Index e = 0; e < value_dim; ++e)
      changes_there(places[static_cast<std::size_t>(t)], e) = value_change(t, e);
  summarize(rotated, value_change);
  mhla::cpu::summarize_value_gradient<double>(rotated.panel(), grad_summary.panel(),
                                              {grad_values.panel().data, value_dim, places.data()},
                                              nullptr);
  CHECK(inner_product(change, grad_summary) == inner_product(changes_there, grad_values));
  for (Index t = 0; t < tokens; ++t)
    for (Index e = 0; e < value_dim; ++e) CHECK(grad_values(2 * t + 1, e) == 0);
}
