// SPDX-License-Identifier: MIT
// What lies in memory for a number, by arithmetic alone: the library's own conversions are among
// what is attacked.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tests/variants/library.hpp"

namespace fuzz {

/// A binary floating-point format.
struct Format {
  Size bytes;
  int digits;      ///< of the significand, the hidden one included
  int lowest;      ///< exponent of the smallest normal number
  double largest;  ///< finite number

  double roundoff() const { return std::ldexp(1.0, -digits); }
  double smallest() const { return std::ldexp(1.0, lowest); }
};
inline Format format_of(Scalar scalar) {
  switch (scalar) {
    case Scalar::float64:
      return {8, 53, -1022, std::numeric_limits<double>::max()};
    case Scalar::float32:
      return {4, 24, -126, double(std::numeric_limits<float>::max())};
    case Scalar::bfloat16:
      return {2, 8, -126, 0x1.fep127};
    default:
      return {2, 11, -14, 65504};
  }
}
inline Scalar accumulator_of(Scalar scalar) {
  return scalar == Scalar::float64 ? Scalar::float64 : Scalar::float32;
}

/// The nearest number of the format, ties to even; `x` is within its range.
inline double rounded_to(const Format& format, double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), format.lowest) - format.digits + 1;
  return std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
}

/// Writes a number of the format.
inline void store(Scalar scalar, double x, void* to) {
  const auto put = [to](auto bits) { std::memcpy(to, &bits, sizeof(bits)); };
  if (scalar == Scalar::float64) return put(x);
  if (scalar == Scalar::float32) return put(static_cast<float>(x));
  const Format f = format_of(scalar);
  const auto sign = static_cast<unsigned>(std::signbit(x)) << 15;
  const unsigned exponents = (1u << (16 - f.digits)) - 1;  // all ones: infinity and NaN
  unsigned bits = exponents << (f.digits - 1) | (std::isnan(x) ? 1u << (f.digits - 2) : 0u);
  if (std::isfinite(x)) {
    const int exponent = x == 0 ? f.lowest : std::max(std::ilogb(x), f.lowest);
    const double significand = std::ldexp(std::abs(x), f.digits - 1 - exponent);
    // Adding exponent and significand carries the hidden digit, which a subnormal does not have.
    bits = static_cast<unsigned>(significand) +
           (static_cast<unsigned>(exponent - f.lowest) << (f.digits - 1));
  }
  put(static_cast<std::uint16_t>(sign | bits));
}

/// Reads one.
inline double load(Scalar scalar, const void* from) {
  const auto get = [from](auto bits) {
    std::memcpy(&bits, from, sizeof(bits));
    return bits;
  };
  if (scalar == Scalar::float64) return get(double());
  if (scalar == Scalar::float32) return static_cast<double>(get(float()));
  const Format f = format_of(scalar);
  const unsigned bits = get(std::uint16_t());
  const unsigned fraction = bits & ((1u << (f.digits - 1)) - 1);
  const int exponent = static_cast<int>((bits & 0x7fff) >> (f.digits - 1));
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == (1 << (16 - f.digits)) - 1)
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, f.lowest - f.digits + 1);
  return sign *
         std::ldexp(fraction + (1u << (f.digits - 1)), exponent - 1 + f.lowest - f.digits + 1);
}

}  // namespace fuzz
