// SPDX-License-Identifier: MIT
// The exponential in arithmetic: near enough to the true one for every float, and right at its
// ends.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mhla/cpu/exponential.hpp>

#include "tests/support/catch.hpp"

namespace {

using mhla::EluPlusOne;
using mhla::Exp;
using namespace mhla::cpu;

constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("exponential: to 1.1 units in the last place, also where it is no normal number",
          "[cpu]") {
  double worst = 0;
  int finite = 0;  // where it must not be
  // Every 9973rd float, of both signs.
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 9973) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(x)) continue;
    const double exact = std::exp(static_cast<double>(x));
    const auto rounded = static_cast<float>(exact);
    if (std::isinf(rounded)) {
      finite += !std::isinf(exponential(x));
      continue;
    }
    const double unit = static_cast<double>(std::nextafter(rounded, infinity)) - rounded;
    const double error = std::abs(static_cast<double>(exponential(x)) - exact) / unit;
    worst = error > worst ? error : worst;
  }
  CHECK(worst < 1.1);
  CHECK(finite == 0);
}

TEST_CASE("exponential: its ends", "[cpu]") {
  CHECK(exponential(0) == 1);
  CHECK(exponential(infinity) == infinity);
  CHECK(exponential(-infinity) == 0);
  CHECK(exponential(88.72f) < infinity);
  CHECK(exponential(88.72f) > 3.39e38f);
  CHECK(exponential(88.73f) == infinity);
  CHECK(exponential(-103.9f) == std::numeric_limits<float>::denorm_min());
  CHECK(exponential(-104.1f) == 0);
  CHECK(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("exponential: maps that are made of it", "[cpu]") {
  for (const float x : {-infinity, -90.0f, -3.0f, -0.25f, -0.0f, 0.0f, 0.25f, 3.0f, 80.0f}) {
    CAPTURE(x);
    const auto check = [&](float actual, float expected) {
      CHECK(std::abs(actual - expected) <= 2.4e-7f * expected);
    };
    check(value_of(Exp{}, x), Exp{}.value(x));
    check(derivative_of(Exp{}, x), Exp{}.derivative(x));
    check(value_of(EluPlusOne{}, x), EluPlusOne{}.value(x));
    check(derivative_of(EluPlusOne{}, x), EluPlusOne{}.derivative(x));
  }
  CHECK(value_of(EluPlusOne{}, infinity) == infinity);
  CHECK(derivative_of(EluPlusOne{}, infinity) == 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(value_of(EluPlusOne{}, nan)));
  CHECK(value_of(mhla::Relu{.epsilon = 0.5}, 2.0f) == 2.5f);
  CHECK(derivative_of(mhla::Relu{}, 2.0f) == 1);
}
