// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

using mhla::ShapeError;
using namespace mhla::testing;

namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
}  // namespace

TEST_CASE("comparison: equal tensors have no error", "[testing]") {
  const auto a = random_tensor<float>(Normal{}, 1, 2, 3, 5);
  const auto result = compare(a.view(), a.view());
  CHECK(result.rms_ratio == 0);
  CHECK(result.max_error == 0);
  CHECK(result.max_ratio == 0);
  CHECK(bitwise_equal(a.view(), a.view()));
}

TEST_CASE("comparison: both figures and the worst place are what they say", "[testing]") {
  HostTensor<double, 2> expected(2, 3);
  expected.elements() = {3, -3, 3, -3, 3, -3};
  HostTensor<double, 2> actual = expected;
  actual(1, 2) += 6;
  actual(0, 1) -= 3;
  const auto result = compare(actual.view(), expected.view());
  CHECK(std::abs(result.rms_ratio - std::sqrt(45.0 / 6) / 3) < 1e-15);
  CHECK(result.max_error == 6);
  CHECK(result.scale == 3);
  CHECK(result.max_ratio == 2);
  CHECK(result.worst[0] == 1);
  CHECK(result.worst[1] == 2);
  CHECK(result.worst_actual == 3);
  CHECK(result.worst_expected == -3);
  CHECK(compare(actual.view(), expected.view(), 12).max_ratio == 0.5);
  CHECK(says(result.report(), "[2, 3]", "(1, 2)", "got 3", "expected -3", "max error 6"));
}

TEST_CASE("comparison: nothing hides a NaN or an infinity", "[testing]") {
  HostTensor<double, 1> clean(3);
  clean.elements() = {1, 2, 3};
  for (const double value : {nan_value, infinity, -infinity}) {
    HostTensor<double, 1> spoiled = clean;
    spoiled(1) = value;
    for (const auto& result :
         {compare(spoiled.view(), clean.view()), compare(clean.view(), spoiled.view()),
          compare(spoiled.view(), clean.view(), infinity)}) {
      CHECK(result.max_error == infinity);
      CHECK_FALSE(result.rms_ratio <= 1e300);
      CHECK(result.worst[0] == 1);
    }
    CHECK_FALSE(compare(spoiled.view(), clean.view()).max_ratio <= 1e300);
  }
  HostTensor<double, 1> nans(1);
  nans(0) = nan_value;
  CHECK(compare(nans.view(), nans.view()).max_error == infinity);
  HostTensor<double, 1> infinite(2);
  infinite(0) = infinity;
  CHECK(compare(infinite.view(), infinite.view()).max_error == 0);
  HostTensor<double, 1> opposite = infinite;
  opposite(0) = -infinity;
  CHECK(compare(infinite.view(), opposite.view()).max_error == infinity);
}

TEST_CASE("comparison: bitwise_equal tells 0 from -0 and any two bits apart", "[testing]") {
  HostTensor<double, 2> a(2, 2);
  HostTensor<double, 2> b(2, 2);
  CHECK(bitwise_equal(a.view(), b.view()));
  b(1, 1) = -0.0;
  CHECK_FALSE(bitwise_equal(a.view(), b.view()));
  a(1, 1) = nan_value;
  b(1, 1) = nan_value;
  CHECK(bitwise_equal(a.view(), b.view()));
  b(0, 0) = std::numeric_limits<double>::denorm_min();
  CHECK_FALSE(bitwise_equal(a.view(), b.view()));
  HostTensor<long double, 1> c(1);
  HostTensor<long double, 1> d(1);
  c(0) = d(0) = 1.0L / 3;
  CHECK(bitwise_equal(c.view(), d.view()));
  d(0) = std::nextafter(d(0), 1.0L);
  CHECK_FALSE(bitwise_equal(c.view(), d.view()));
}
