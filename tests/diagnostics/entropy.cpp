// SPDX-License-Identifier: MIT
// Row entropy on rows whose answers are known.
#include <cmath>
#include <limits>
#include <mhla/diagnostics/attention_matrix.hpp>

#include "tests/support/catch.hpp"

using mhla::Index;
using mhla::make_view;
using mhla::diagnostics::mean_row_entropy;
using mhla::diagnostics::row_entropy;

TEST_CASE("entropy: from none for one key to log n for n equal ones", "[diagnostics]") {
  const double weights[5][4] = {{0, 3, 0, 0},   // one key
                                {5, 5, 5, 5},   // all alike, not normalized
                                {1, 0, 1, 0},   // two of four
                                {3, 1, 0, 0},   // p = 3/4, 1/4
                                {0, 0, 0, 0}};  // nothing
  const auto view = make_view(&weights[0][0], 5, 4);
  const double three_to_one = 2 * std::log(2.) - 0.75 * std::log(3.);
  const double expected[5] = {0, std::log(4.), std::log(2.), three_to_one, 0};
  double sum = 0;
  for (Index t = 0; t < 5; ++t) {
    CHECK(std::abs(row_entropy(view, t) - expected[t]) <= 1e-15);
    sum += expected[t];
  }
  CHECK(std::abs(mean_row_entropy(view) - sum / 5) <= 1e-15);
}

TEST_CASE("entropy: uniform causal attention has log(t + 1) in row t", "[diagnostics]") {
  float weights[7][7] = {};
  for (int t = 0; t < 7; ++t)
    for (int j = 0; j <= t; ++j) weights[t][j] = 0.25F;
  const auto view = make_view(&weights[0][0], 7, 7);
  for (Index t = 0; t < 7; ++t)
    CHECK(std::abs(row_entropy(view, t) - std::log(static_cast<double>(t + 1))) <= 1e-15);
}

TEST_CASE("entropy: of signed weights, that of their absolute values", "[diagnostics]") {
  const double signed_weights[3] = {-3, 1, 2};
  const double absolute[3] = {3, 1, 2};
  CHECK(row_entropy(make_view(signed_weights, 1, 3), 0) ==
        row_entropy(make_view(absolute, 1, 3), 0));
}

TEST_CASE("entropy: NaN, and no rows at all", "[diagnostics]") {
  const double weights[2] = {1, std::numeric_limits<double>::quiet_NaN()};
  CHECK(std::isnan(row_entropy(make_view(weights, 1, 2), 0)));
  CHECK(std::isnan(mean_row_entropy(make_view(weights, 1, 2))));
  CHECK(mean_row_entropy(make_view(weights, 0, 2)) == 0);
  CHECK(mean_row_entropy(make_view(weights, 2, 0)) == 0);
}
