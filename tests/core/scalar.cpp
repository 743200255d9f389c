// SPDX-License-Identifier: MIT
// 16-bit storage: every pattern, and rounding against a formula of real numbers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mhla/core/scalar.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <type_traits>

#include "tests/support/catch.hpp"

using mhla::BFloat16;
using mhla::Half;

static_assert(sizeof(BFloat16) == 2 && sizeof(Half) == 2);
static_assert(std::is_trivial_v<BFloat16> && std::is_trivial_v<Half>);
static_assert(std::is_same_v<mhla::Accumulator<BFloat16>, float>);
static_assert(std::is_same_v<mhla::Accumulator<Half>, float>);
static_assert(std::is_same_v<mhla::Accumulator<float>, float>);
static_assert(std::is_same_v<mhla::Accumulator<double>, double>);
static_assert(std::is_same_v<mhla::Accumulator<long double>, long double>);
static_assert(mhla::StorageScalar<float> && mhla::StorageScalar<long double>);
static_assert(mhla::StorageScalar<BFloat16> && mhla::StorageScalar<Half>);
static_assert(!mhla::StorageScalar<int>);

namespace {

// The format's own numbers: significant bits, exponent of the smallest step, and 2^(emax + 1).
template <class T>
struct Format;
template <>
struct Format<BFloat16> {
  static constexpr int digits = 8;
  static constexpr int smallest_step = -133;
  static constexpr int overflow = 128;
  static constexpr std::uint16_t infinity = 0x7f80;
};
template <>
struct Format<Half> {
  static constexpr int digits = 11;
  static constexpr int smallest_step = -24;
  static constexpr int overflow = 16;
  static constexpr std::uint16_t infinity = 0x7c00;
};

// The nearest number of the format, ties to even: a multiple of the step at x's exponent.
template <class T>
double nearest(float x) {
  if (x == 0 || std::isinf(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const int step = std::max(exponent - Format<T>::digits, Format<T>::smallest_step);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(double{x}, -step)), step);
  if (std::abs(rounded) < std::ldexp(1.0, Format<T>::overflow)) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), double{x});
}

// The value of a bit pattern as the format defines it.
template <class T>
double meaning(std::uint16_t bits) {
  constexpr int fraction_bits = Format<T>::digits - 1;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, Format<T>::smallest_step)
                                         : std::ldexp(fraction + (1 << fraction_bits),
                                                      exponent - 1 + Format<T>::smallest_step);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

template <class T>
bool rounds(float x) {
  T stored{};
  mhla::store(stored, x);
  const double got = mhla::load(stored);
  return got == nearest<T>(x) && std::signbit(got) == std::signbit(x);
}

template <class T>
void check_every_pattern() {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const T stored{static_cast<std::uint16_t>(pattern)};
    const float value = mhla::load(stored);
    T again{};
    mhla::store(again, value);
    const std::uint32_t magnitude = pattern & 0x7fffu;
    if (magnitude > Format<T>::infinity) {  // NaN stays NaN, of its sign, and quiet
      REQUIRE(std::isnan(value));
      REQUIRE((again.bits & 0x7fffu) > Format<T>::infinity);
      REQUIRE((again.bits & 0x8000u) == (pattern & 0x8000u));
      continue;
    }
    REQUIRE(again.bits == pattern);
    if (magnitude == Format<T>::infinity) {
      REQUIRE(std::isinf(value));
      REQUIRE(std::signbit(value) == (pattern >= 0x8000u));
      continue;
    }
    REQUIRE(double{value} == meaning<T>(stored.bits));
  }
}

template <class T>
void check_rounding() {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  // At every number of the format, half way to the next one, and one float beside both.
  for (std::uint32_t pattern = 0; pattern < Format<T>::infinity; ++pattern) {
    const double low = meaning<T>(static_cast<std::uint16_t>(pattern));
    const double high = pattern + 1u == Format<T>::infinity
                            ? std::ldexp(1.0, Format<T>::overflow)
                            : meaning<T>(static_cast<std::uint16_t>(pattern + 1));
    for (const double exact : {low, (low + high) / 2}) {
      const float x = static_cast<float>(exact);
      if (x != exact) continue;  // below bfloat16's last half step float has none either
      for (const float near_x : {x, std::nextafter(x, infinity), std::nextafter(x, -infinity)})
        for (const float signed_x : {near_x, -near_x}) REQUIRE(rounds<T>(signed_x));
    }
  }
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(mhla::testing::random_bits(11, i));
    const float x = mhla::scalar_traits::reinterpret<float>(bits);
    if (!std::isnan(x)) REQUIRE(rounds<T>(x));
  }
  REQUIRE(rounds<T>(infinity));
  REQUIRE(rounds<T>(-infinity));
  REQUIRE(rounds<T>(std::numeric_limits<float>::max()));
  REQUIRE(rounds<T>(std::numeric_limits<float>::denorm_min()));
}

}  // namespace

TEST_CASE("scalar: all 65536 patterns load to their value and store to themselves", "[core]") {
  SECTION("bfloat16") { check_every_pattern<BFloat16>(); }
  SECTION("half") { check_every_pattern<Half>(); }
}

TEST_CASE("scalar: store rounds to nearest, ties to even, too large to infinity", "[core]") {
  SECTION("bfloat16") { check_rounding<BFloat16>(); }
  SECTION("half") { check_rounding<Half>(); }
}

TEST_CASE("scalar: every NaN stays NaN, also with its payload in the low bits", "[core]") {
  for (const std::uint32_t bits :
       {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
    const float nan = mhla::scalar_traits::reinterpret<float>(bits);
    BFloat16 bfloat{};
    Half half{};
    mhla::store(bfloat, nan);
    mhla::store(half, nan);
    CHECK(std::isnan(mhla::load(bfloat)));
    CHECK(std::isnan(mhla::load(half)));
  }
}

TEST_CASE("scalar: floating-point types are stored as they are", "[core]") {
  double stored = 0;
  mhla::store(stored, 0.1);
  CHECK(mhla::load(stored) == 0.1);
  float narrow = 0;
  mhla::store(narrow, 0.1);
  CHECK(mhla::load(narrow) == 0.1f);
}
