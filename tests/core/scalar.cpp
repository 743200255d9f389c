// SPDX-License-Identifier: MIT
// 16-bit storage: every pattern, and rounding against a formula of real numbers.
#include <algorithm>
#include <cmath>
#include <cstddef>
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
double nearest(double x) {
  if (x == 0 || std::isinf(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const int step = std::max(exponent - Format<T>::digits, Format<T>::smallest_step);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -step)), step);
  if (std::abs(rounded) < std::ldexp(1.0, Format<T>::overflow)) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), x);
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
    const T stored = T::from_bits(static_cast<std::uint16_t>(pattern));
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

// Floating-point numbers convert where that is asked for, nothing else does at all: an integer
// might be a value or a representation.
template <class T, class Other, class... Integers>
constexpr bool converts_where_asked() {
  const auto explicitly = []<class X>(X) {
    return std::is_constructible_v<T, X> && std::is_constructible_v<X, T>;
  };
  const auto silently = []<class X>(X) {
    return std::is_convertible_v<X, T> || std::is_convertible_v<T, X> ||
           std::is_assignable_v<T&, X> || std::is_assignable_v<X&, T>;
  };
  const auto none = [&]<class X>(X x) {
    return !std::is_constructible_v<T, X> && !std::is_constructible_v<X, T> && !silently(x);
  };
  return explicitly(1.0f) && explicitly(1.0) && explicitly(1.0L) && explicitly(Other{}) &&
         !silently(1.0f) && !silently(1.0) && !silently(1.0L) && !silently(Other{}) &&
         (none(Integers{}) && ...) && none("text") && none(nullptr) && !std::is_aggregate_v<T>;
}
template <class T, class Other>
inline constexpr bool converts =
    converts_where_asked<T, Other, bool, char, signed char, short, unsigned short, int, unsigned,
                         long, unsigned long, long long, unsigned long long>();
static_assert(converts<BFloat16, Half> && converts<Half, BFloat16>);
template <class T, class X>
concept TakesBits = requires(X x) {
  T::from_bits(x);
};
static_assert(TakesBits<BFloat16, std::uint16_t> && TakesBits<Half, std::uint16_t>);
static_assert(!TakesBits<BFloat16, float> && !TakesBits<Half, double> && !TakesBits<Half, int>);

// As Eigen's, CUDA's or the compiler's 16-bit types.
struct Foreign {
  std::uint16_t bits;
  operator float() const { return bits == 0 ? 0.0f : -1.5f; }  // NOLINT: as Eigen's
};

// Numbers beside the middle of two neighbours, nearer to it than float's step: rounded to float
// first, they would become ties.
template <class T>
void check_conversions() {
  for (const double x : {1e-46, 0x1p-150, 1e-50, 1e300})  // beyond float on either side
    for (const double signed_x : {x, -x}) {
      CHECK(static_cast<double>(T(signed_x)) == nearest<T>(signed_x));
      CHECK(std::signbit(static_cast<double>(T(signed_x))) == std::signbit(signed_x));
    }
  CHECK(mhla::load(T(1.5f)) == 1.5f);
  CHECK(mhla::load(T{-2.25}) == -2.25f);
  CHECK(mhla::load(T(Foreign{1})) == -1.5f);
  CHECK(static_cast<double>(T(BFloat16(0.5f))) + double(T(Half(0.25L))) == 0.75);
  CHECK(std::isnan(mhla::load(T(std::numeric_limits<double>::quiet_NaN()))));
  CHECK(T{}.bits == 0);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (std::uint32_t pattern = 0; pattern < Format<T>::infinity; ++pattern) {
    const double low = meaning<T>(static_cast<std::uint16_t>(pattern));
    const double high = pattern + 1u == Format<T>::infinity
                            ? std::ldexp(1.0, Format<T>::overflow)
                            : meaning<T>(static_cast<std::uint16_t>(pattern + 1));
    const double middle = (low + high) / 2;
    for (const double x :
         {low, middle, std::nextafter(middle, 0), std::nextafter(middle, infinity)})
      for (const double signed_x : {x, -x}) {
        REQUIRE(static_cast<double>(T(signed_x)) == nearest<T>(signed_x));
        REQUIRE(std::signbit(static_cast<double>(T(signed_x))) == std::signbit(signed_x));
        T stored{};
        mhla::store(stored, signed_x);
        REQUIRE(stored.bits == T(signed_x).bits);
      }
  }
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

TEST_CASE("scalar: numbers convert to 16 bits where asked, rounded once", "[core]") {
  SECTION("bfloat16") { check_conversions<BFloat16>(); }
  SECTION("half") { check_conversions<Half>(); }
}
