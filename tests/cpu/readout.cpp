// SPDX-License-Identifier: MIT
// Readout of a tile against plain formulas, and its adjoint against differences; and what a
// denominator of 0 does in both.
#include <cmath>
#include <limits>
#include <mhla/cpu/readout.hpp>
#include <mhla/testing/gradient_check.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>

#include "tests/cpu/integer_panel.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/tolerances.hpp"

namespace {

using namespace mhla;
using mhla::cpu::Panel;
using namespace mhla::testing;
using panels::IntegerPanel;

constexpr Index tokens = 9;
constexpr Index features = 5;
constexpr Index value_dim = 7;
constexpr double epsilon = 0.25;

Panel<double> panel_of(HostTensor<double, 2>& tensor) {
  return mhla::cpu::panel(tensor.view().data, tensor.extent(0), tensor.extent(1));
}
Span<double> row_of(HostTensor<double, 1>& tensor) {
  return {tensor.view().data, tensor.extent(0)};
}

// Features Q, the rotated ones (here independent of Q), S~, z~ and the output's gradient.
struct Tile {
  HostTensor<double, 2> plain = random_tensor<double>(Positive{}, 1, tokens, features);
  HostTensor<double, 2> rotated = random_tensor<double>(Normal{}, 2, tokens, features);
  HostTensor<double, 2> mixed_summary = random_tensor<double>(Normal{}, 3, features, value_dim);
  HostTensor<double, 1> mixed_key_sum = random_tensor<double>(Positive{}, 4, features);
  HostTensor<double, 2> dy = random_tensor<double>(Normal{}, 5, tokens, value_dim);
  HostTensor<double, 2> y{tokens, value_dim};
  HostTensor<double, 1> denominators{tokens};

  void read_out() {
    mhla::cpu::mixed_key_sum_denominators<double>(panel_of(plain), row_of(mixed_key_sum), epsilon,
                                                  row_of(denominators));
    mhla::cpu::read_out<double>(panel_of(rotated), panel_of(mixed_summary), {},
                                panel_of(y).placed(), nullptr);
    mhla::cpu::divide_rows<double>(panel_of(y), row_of(denominators));
  }
  /// In one step where no denominator is improper, y's rows last to first. False where one is.
  bool read_out_in_one_step() {
    mhla::cpu::mixed_key_sum_denominators<double>(panel_of(plain), row_of(mixed_key_sum), epsilon,
                                                  row_of(denominators));
    HostTensor<double, 1> inverses{tokens};
    if (!mhla::cpu::invert<double>(row_of(denominators), row_of(inverses))) return false;
    Index last_first[tokens];
    for (Index t = 0; t < tokens; ++t) last_first[t] = tokens - 1 - t;
    mhla::cpu::read_out<double>(panel_of(rotated), panel_of(mixed_summary), row_of(inverses),
                                {panel_of(y).data, value_dim, last_first}, nullptr);
    return true;
  }
  double loss() {
    read_out();
    double sum = 0;
    for (Index t = 0; t < tokens; ++t)
      for (Index c = 0; c < value_dim; ++c) sum += dy(t, c) * y(t, c);
    return sum;
  }
};

}  // namespace

TEST_CASE("readout: y = Q^r S~ / (Q z~ + epsilon)", "[cpu]") {
  Tile tile;
  tile.read_out();
  for (Index t = 0; t < tokens; ++t) {
    double den = epsilon;
    for (Index c = 0; c < features; ++c) den += tile.plain(t, c) * tile.mixed_key_sum(c);
    CHECK(tile.denominators(t) == Approx(den).epsilon(1e-14));
    for (Index e = 0; e < value_dim; ++e) {
      double num = 0;
      double terms = 0;
      for (Index c = 0; c < features; ++c) {
        num += tile.rotated(t, c) * tile.mixed_summary(c, e);
        terms += std::abs(tile.rotated(t, c) * tile.mixed_summary(c, e));
      }
      CHECK(std::abs(tile.y(t, e) - num / den) <= 1e-15 * terms / den);
    }
  }
}

TEST_CASE("readout: in one step, straight to where y belongs, it has the same bits", "[cpu]") {
  Tile tile;
  tile.read_out();
  const HostTensor<double, 2> y = tile.y;
  REQUIRE(tile.read_out_in_one_step());
  for (Index t = 0; t < tokens; ++t)
    for (Index e = 0; e < value_dim; ++e) CHECK(tile.y(tokens - 1 - t, e) == y(t, e));
  tile.plain(3, 2) = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(tile.read_out_in_one_step());
  for (Index f = 0; f < features; ++f) tile.plain(3, f) = 0;
  tile.mixed_key_sum(1) = 1;
  tile.plain(3, 1) = -epsilon;
  CHECK_FALSE(tile.read_out_in_one_step());
}

TEST_CASE("readout: the adjoint, with dS~ and dz~ in two tiles", "[cpu]") {
  Tile tile;
  tile.read_out();
  HostTensor<double, 2> u = tile.dy;
  HostTensor<double, 2> grad_rotated(tokens, features);
  HostTensor<double, 1> c(tokens);
  HostTensor<double, 2> grad_plain(tokens, features);
  HostTensor<double, 2> grad_summary(features, value_dim);
  HostTensor<double, 2> grad_transposed = random_tensor<double>(Normal{}, 6, value_dim, features);
  HostTensor<double, 2> summary_transposed(value_dim, features);
  HostTensor<double, 1> grad_key_sum = random_tensor<double>(Normal{}, 7, features);
  mhla::cpu::divide_rows<double>(panel_of(u), row_of(tile.denominators));
  for (Index f = 0; f < features; ++f)
    for (Index e = 0; e < value_dim; ++e) summary_transposed(e, f) = tile.mixed_summary(f, e);
  mhla::cpu::read_out_query_gradient<double>(panel_of(u), panel_of(summary_transposed),
                                             panel_of(grad_rotated), nullptr);
  mhla::cpu::denominator_gradient<double>(panel_of(tile.rotated), panel_of(grad_rotated),
                                          row_of(tile.denominators), row_of(c));
  for (Index t = 0; t < tokens; ++t)
    for (Index f = 0; f < features; ++f) grad_plain(t, f) = c(t) * tile.mixed_key_sum(f);
  constexpr Index first = 4;
  for (const Index begin : {Index{0}, first}) {
    const Index rows = begin == 0 ? first : tokens - first;
    const Into into = begin == 0 ? Into::overwrite : Into::add;
    mhla::cpu::read_out_summary_gradient<double>(panel_of(tile.rotated).row_range(begin, rows),
                                                 panel_of(u).row_range(begin, rows),
                                                 panel_of(grad_transposed), into, nullptr);
    mhla::cpu::read_out_key_sum_gradient<double>(panel_of(tile.plain).row_range(begin, rows),
                                                 {c.view().data + begin, rows},
                                                 row_of(grad_key_sum), into);
  }

  for (Index f = 0; f < features; ++f)
    for (Index e = 0; e < value_dim; ++e) grad_summary(f, e) = grad_transposed(e, f);

  using mhla::testing::differentiate;
  const auto check = mhla::testing::check_gradient(
      [&] { return tile.loss(); }, 8, 4, differentiate(tile.rotated, grad_rotated),
      differentiate(tile.plain, grad_plain), differentiate(tile.mixed_summary, grad_summary),
      differentiate(tile.mixed_key_sum, grad_key_sum));
  INFO(check.report());
  CHECK(check.error <= ::tolerance::gradient_check);
}

TEST_CASE("readout: a denominator of 0 gives 0 and contributes nothing, a NaN stays", "[cpu]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const double denominators[] = {0.0, -0.0, 2.0, nan};
  IntegerPanel rows(4, 3, 1);
  rows(0, 1) = nan;  // 0 whatever stands above it
  rows(1, 2) = infinity;
  const IntegerPanel before = rows;
  mhla::cpu::divide_rows<double>(rows.panel(), {denominators, 4});
  for (Index c = 0; c < 3; ++c) {
    CHECK(rows(0, c) == 0);
    CHECK(rows(1, c) == 0);
    CHECK(rows(2, c) == before(2, c) / 2);
    CHECK(std::isnan(rows(3, c)));
  }

  const IntegerPanel rotated(4, 3, 2);
  const IntegerPanel grad_rotated(4, 3, 3);
  double gradient[4] = {9, 9, 9, 9};
  mhla::cpu::denominator_gradient<double>(rotated.panel(), grad_rotated.panel(), {denominators, 4},
                                          {gradient, 4});
  CHECK(gradient[0] == 0);
  CHECK(gradient[1] == 0);
  double product = 0;
  for (Index c = 0; c < 3; ++c) product += rotated(2, c) * grad_rotated(2, c);
  CHECK(gradient[2] == -product / 2);
  CHECK(std::isnan(gradient[3]));
}

TEST_CASE("readout: without a normalizer rows stay as they are", "[cpu]") {
  IntegerPanel rows(4, 3, 1);
  const IntegerPanel before = rows;
  mhla::cpu::divide_rows<double>(rows.panel(), {});
  CHECK(rows == before);
}
