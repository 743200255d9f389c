// SPDX-License-Identifier: MIT
// Storage scalars and the accumulator each is computed in.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <mhla/core/config.hpp>

MHLA_NAMESPACE_BEGIN

/// bfloat16 as it lies in memory: the upper half of a float. A storage type without arithmetic.
struct BFloat16 {
  std::uint16_t bits;
};

/// IEEE binary16 as it lies in memory. A storage type without arithmetic.
struct Half {
  std::uint16_t bits;
};

namespace scalar_traits {
template <class Storage>
struct Accumulator {
  using type = Storage;
};
template <>
struct Accumulator<BFloat16> {
  using type = float;
};
template <>
struct Accumulator<Half> {
  using type = float;
};

template <class To, class From>
MHLA_HOST_DEVICE To reinterpret(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}
}  // namespace scalar_traits

/// The type products are summed in, mix and its gradient are given in: float for the 16-bit
/// storage types, the storage type itself for every other.
template <class Storage>
using Accumulator = typename scalar_traits::Accumulator<Storage>::type;

/// A type tensors can be stored in: float, double, any other floating-point type, BFloat16, Half.
template <class T>
concept StorageScalar =
    std::floating_point<T> || std::same_as<T, BFloat16> || std::same_as<T, Half>;

/// The value of a stored element.
template <std::floating_point T>
MHLA_HOST_DEVICE constexpr T load(T stored) {
  return stored;
}

MHLA_HOST_DEVICE inline float load(BFloat16 stored) {
  return scalar_traits::reinterpret<float>(static_cast<std::uint32_t>(stored.bits) << 16);
}

MHLA_HOST_DEVICE inline float load(Half stored) {
  const std::uint32_t sign = static_cast<std::uint32_t>(stored.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (stored.bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = stored.bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24 is exact in float
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide_exponent = exponent == 0x1fu ? 0xffu : exponent + 112u;
  return scalar_traits::reinterpret<float>(sign | (wide_exponent << 23) | (mantissa << 13));
}

/// Stores a value, rounding to nearest, ties to even. NaN stays NaN, too large becomes infinity.
template <std::floating_point T, std::floating_point A>
MHLA_HOST_DEVICE constexpr void store(T& stored, A value) {
  stored = static_cast<T>(value);
}

MHLA_HOST_DEVICE inline void store(BFloat16& stored, float value) {
  const std::uint32_t bits = scalar_traits::reinterpret<std::uint32_t>(value);
  if (value != value) {  // the rounding below could carry a NaN into infinity
    stored.bits = static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    return;
  }
  stored.bits = static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

MHLA_HOST_DEVICE inline void store(Half& stored, float value) {
  const std::uint32_t bits = scalar_traits::reinterpret<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {  // NaN
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // normal: drop 13 mantissa bits, round to even
    half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  } else {  // subnormal: adding 0.5 lets the float unit round at 2^-24
    const float shifted = scalar_traits::reinterpret<float>(magnitude) + 0.5f;
    half = scalar_traits::reinterpret<std::uint32_t>(shifted) - 0x3f000000u;
  }
  stored.bits = static_cast<std::uint16_t>(sign | half);
}

MHLA_NAMESPACE_END
