// SPDX-License-Identifier: MIT
// Storage scalars, and the accumulator type each is computed in.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <mhla/core/config.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup views
/// \{

// 16-bit tensors mostly belong to somebody else, as Eigen::bfloat16, __nv_bfloat16 or plain
// uint16_t of the same representation. may_alias lets memory be read and written through our types
// whatever type its owner gave it, as through char.

/// bfloat16 in memory: the upper half of a float. A storage type without arithmetic.
struct [[gnu::may_alias]] BFloat16 {
  std::uint16_t bits;  ///< sign, 8 bits of exponent, 7 of mantissa
};

/// IEEE binary16 in memory. A storage type without arithmetic.
struct [[gnu::may_alias]] Half {
  std::uint16_t bits;  ///< sign, 5 bits of exponent, 10 of mantissa
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

// The 16-bit conversions compute every case and select by such a mask: with a branch, a loop over a
// row would not be vectorized.
MHLA_HOST_DEVICE constexpr std::int32_t all_ones_if(bool condition) {
  return -static_cast<std::int32_t>(condition);
}
}  // namespace scalar_traits

/// The type that products are summed in and that mix, its gradient and workspaces have: float for
/// 16-bit storage types, the storage type itself for every other.
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

/// Exact.
MHLA_HOST_DEVICE inline float load(BFloat16 stored) {
  return scalar_traits::reinterpret<float>(static_cast<std::uint32_t>(stored.bits) << 16);
}

/// Exact.
MHLA_HOST_DEVICE inline float load(Half stored) {
  using scalar_traits::all_ones_if;
  const std::int32_t magnitude = stored.bits & 0x7fff;
  // Zero and subnormals, magnitude * 2^-24: the last bit of 0.5 is 2^-24.
  const float above_half = scalar_traits::reinterpret<float>(0x3f000000 + magnitude);
  const auto subnormal = scalar_traits::reinterpret<std::int32_t>(above_half - 0.5f);
  // The exponent's bias is 112 larger in float, and that of infinity and NaN another 112.
  const std::int32_t more = all_ones_if(magnitude >= 0x7c00) & (112 << 23);
  const std::int32_t normal = (magnitude << 13) + (112 << 23) + more;
  const std::int32_t is_small = all_ones_if(magnitude < 0x400);
  const std::int32_t wide = (subnormal & is_small) | (normal & ~is_small);
  const std::uint32_t sign = static_cast<std::uint32_t>(stored.bits & 0x8000) << 16;
  return scalar_traits::reinterpret<float>(static_cast<std::uint32_t>(wide) | sign);
}

/// Stores a value, rounding to nearest, ties to even. NaN stays NaN; what overflows becomes
/// infinity.
template <std::floating_point T, std::floating_point A>
MHLA_HOST_DEVICE constexpr void store(T& stored, A value) {
  stored = static_cast<T>(value);
}

/// Likewise.
MHLA_HOST_DEVICE inline void store(BFloat16& stored, float value) {
  using scalar_traits::all_ones_if;
  const auto bits = scalar_traits::reinterpret<std::uint32_t>(value);
  // Rounding could turn a NaN into infinity: it is truncated, and made quiet.
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fffffffu);
  const auto is_nan = static_cast<std::uint32_t>(all_ones_if(magnitude > 0x7f800000));
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40u;
  stored.bits = static_cast<std::uint16_t>((nan & is_nan) | (rounded & ~is_nan));
}

/// Likewise.
MHLA_HOST_DEVICE inline void store(Half& stored, float value) {
  using scalar_traits::all_ones_if;
  const auto bits = scalar_traits::reinterpret<std::uint32_t>(value);
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fffffffu);
  // Normal: drop 13 bits of the mantissa, round to even. (Below that it wraps, unused.)
  const std::uint32_t rounded = (bits & 0x7fffffffu) + 0xfffu + ((bits >> 13) & 1u) - 0x38000000u;
  const auto normal = static_cast<std::int32_t>(rounded >> 13);
  // Subnormal: adding 0.5 lets the float unit round at 2^-24.
  const float above_half = scalar_traits::reinterpret<float>(magnitude) + 0.5f;
  const std::int32_t subnormal = scalar_traits::reinterpret<std::int32_t>(above_half) - 0x3f000000;
  const std::int32_t is_small = all_ones_if(magnitude < 0x38800000);
  const std::int32_t is_large = all_ones_if(magnitude >= 0x477ff000);  // 65520 and above
  const std::int32_t is_nan = all_ones_if(magnitude > 0x7f800000);
  const std::int32_t finite = (subnormal & is_small) | (normal & ~is_small);
  const std::int32_t large = 0x7c00 | (is_nan & 0x200);
  const std::int32_t half = (large & is_large) | (finite & ~is_large);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  stored.bits = static_cast<std::uint16_t>(static_cast<std::uint32_t>(half) | sign);
}

/// \}

MHLA_NAMESPACE_END
