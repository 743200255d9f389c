// SPDX-License-Identifier: MIT
// The gradient check passes right gradients and fails ones that are wrong by very little.
#include <cmath>
#include <limits>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/gradient_check.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <stdexcept>
#include <utility>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"
#include "tests/support/tolerances.hpp"

using namespace mhla::testing;

namespace {

// f(x, y) = sum_ij exp(x_i) sin(y_ij), its gradients written by hand.
struct Function {
  HostTensor<double, 1> x = random_tensor<double>(Normal{}, 1, 4);
  HostTensor<double, 2> y = random_tensor<double>(Normal{}, 2, 4, 3);
  HostTensor<double, 1> dx = HostTensor<double, 1>(4);
  HostTensor<double, 2> dy = HostTensor<double, 2>(4, 3);

  Function() {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 3; ++j) {
        dx(i) += std::exp(x(i)) * std::sin(y(i, j));
        dy(i, j) = std::exp(x(i)) * std::cos(y(i, j));
      }
  }
  double operator()() const {
    double sum = 0;
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 3; ++j) sum += std::exp(x(i)) * std::sin(y(i, j));
    return sum;
  }
  GradientCheck check(int directions = 3) {
    return check_gradient(*this, 3, directions, differentiate(x, dx), differentiate(y, dy));
  }
};

}  // namespace

TEST_CASE("gradient_check: a right gradient passes", "[testing]") {
  Function f;
  const GradientCheck check = f.check();
  INFO(check);
  CHECK(check.error <= ::tolerance::gradient_check);
  CHECK(std::abs(check.claimed - check.measured) < 1e-9);
  CHECK(says(check.report(), "relative error", "direction seed"));
  CHECK(check_gradient(f, 4, 3, differentiate(f.y, f.dy)).error <= ::tolerance::gradient_check);
}

TEST_CASE("gradient_check: one element wrong by 1e-8 of itself fails", "[testing]") {
  for (int i = 0; i < 4; ++i) {
    Function f;
    f.dx(i) *= 1 + 1e-8;
    CHECK(f.check().error > ::tolerance::gradient_check);
    Function g;
    g.dy(i, i % 3) *= 1 - 1e-8;
    CHECK(g.check().error > ::tolerance::gradient_check);
  }
  Function swapped;
  std::swap(swapped.dy(0, 1), swapped.dy(1, 0));
  CHECK(swapped.check().error > 1e-4);
}

TEST_CASE("gradient_check: NaN in the gradient or the function fails", "[testing]") {
  Function f;
  f.dx(2) = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(f.check().error <= ::tolerance::gradient_check);
  Function g;
  const auto loss = [&] { return g.x(0) > 100 ? 0.0 : std::sqrt(-1 - g.x(0) * g.x(0)); };
  CHECK_FALSE(check_gradient(loss, 3, 2, differentiate(g.x, g.dx)).error <= 1e300);
}

TEST_CASE("gradient_check: operands get their bits back, also when the function throws",
          "[testing]") {
  Function f;
  const auto x = f.x;
  const auto y = f.y;
  f.check();
  CHECK(bitwise_equal(f.x.view(), x.view()));
  CHECK(bitwise_equal(f.y.view(), y.view()));
  int calls = 0;
  const auto loss = [&]() -> double {
    if (++calls == 3) throw std::runtime_error("enough");
    return f();
  };
  CHECK_THROWS_AS(check_gradient(loss, 3, 1, differentiate(f.x, f.dx)), std::runtime_error);
  CHECK(bitwise_equal(f.x.view(), x.view()));
}

TEST_CASE("gradient_check: without a direction nothing is checked", "[testing]") {
  HostTensor<double, 1> x(3);
  const auto constant = [] { return 2.0; };
  for (const int directions : {0, -1})
    CHECK_THROWS_AS(check_gradient(constant, 1, directions, differentiate(x, x)), mhla::ShapeError);
}
