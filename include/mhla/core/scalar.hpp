// SPDX-License-Identifier: MIT
// Storage scalars, and the accumulator type each is computed in.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <mhla/core/config.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

/// \addtogroup views
/// \{

// 16-bit tensors mostly belong to somebody else, as Eigen::bfloat16, __nv_bfloat16 or plain
// uint16_t of the same representation. may_alias lets memory be read and written through our types
// whatever type its owner gave it, as through char.

/// \cond INTERNAL
namespace scalar_traits {
template <class To, class From>
MHLA_HOST_DEVICE To reinterpret(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// Another library's 16-bit type, whose values convert to float without rounding.
template <class X>
concept ForeignSixteenBits = std::is_class_v<X> && sizeof(X) == 2 && requires(X x) {
  static_cast<float>(x);
};
// Types that convert to a 16-bit type. Integers do not: they may be values or representations.
template <class X, class To>
concept ConvertsTo = std::floating_point<X> ||(!std::same_as<X, To> && ForeignSixteenBits<X>);

// Rounds to odd: the result rounds to 16 bits as `value` itself does. It is truncated, and its last
// bit is set where truncation dropped something. (Rounding to nearest would round twice.)
template <std::floating_point X>
MHLA_HOST_DEVICE float to_odd(X value) {
  const auto nearest = static_cast<float>(value);
  if constexpr (sizeof(X) <= sizeof(float)) return nearest;
  if (static_cast<X>(nearest) == value || value != value) return nearest;
  const bool away_from_zero =
      value > 0 ? static_cast<X>(nearest) > value : static_cast<X>(nearest) < value;
  const std::uint32_t truncated = reinterpret<std::uint32_t>(nearest) - (away_from_zero ? 1u : 0u);
  return reinterpret<float>(truncated | 1u);
}
template <ForeignSixteenBits X>
MHLA_HOST_DEVICE float to_odd(X value) {
  return static_cast<float>(value);
}
}  // namespace scalar_traits
/// \endcond

/// What BFloat16 and Half, each a Self, have in common: storage types without arithmetic.
/// Conversions are explicit: `Self(x)` rounds a floating-point number once, to nearest, ties to
/// even; `float(s)` widens without rounding.
template <class Self>
struct [[gnu::may_alias]] SixteenBits {
  std::uint16_t bits;  ///< sign, exponent, mantissa

  /// Uninitialized; `Self{}` is 0.
  SixteenBits() = default;
  /// The nearest to a number, ties to even, or to another 16-bit type's value.
  template <scalar_traits::ConvertsTo<Self> X>
  MHLA_HOST_DEVICE explicit SixteenBits(X value) {
    store(static_cast<Self&>(*this), scalar_traits::to_odd(value));
  }
  /// Of a representation, a std::uint16_t.
  MHLA_HOST_DEVICE static constexpr Self from_bits(std::uint16_t representation) {
    Self result;
    result.bits = representation;
    return result;
  }
  template <class X>
  static Self from_bits(X) = delete;
  /// The value, without rounding.
  template <std::floating_point X>
  MHLA_HOST_DEVICE explicit operator X() const {
    return static_cast<X>(load(static_cast<const Self&>(*this)));
  }
};

/// bfloat16 in memory, the upper half of a float: 8 bits of exponent, 7 of mantissa.
struct [[gnu::may_alias]] BFloat16 : SixteenBits<BFloat16> {
  using SixteenBits::SixteenBits;
};

/// IEEE binary16 in memory: 5 bits of exponent, 10 of mantissa.
struct [[gnu::may_alias]] Half : SixteenBits<Half> {
  using SixteenBits::SixteenBits;
};

namespace scalar_traits {
template <class T>
concept SixteenBitStorage = std::same_as<T, BFloat16> || std::same_as<T, Half>;
template <class Storage>
struct Accumulator {
  using type = std::conditional_t<SixteenBitStorage<Storage>, float, Storage>;
};

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
concept StorageScalar = std::same_as<T, std::remove_cv_t<T>> &&
    (std::floating_point<T> || scalar_traits::SixteenBitStorage<T>);

/// \cond INTERNAL
// A floating-point type, not const.
template <class T>
concept WritableScalar = std::floating_point<T> && !std::is_const_v<T>;

// A power of two, divided by which numbers up to `largest` have squares that neither overflow nor
// vanish; 1 if that is 0 or not finite.
template <class T>
T square_scale(T largest) {
  return largest > 0 && (std::isfinite)(largest) ? std::ldexp(T(1), std::ilogb(largest)) : T(1);
}
/// \endcond

/// The value of a stored element.
template <std::floating_point T>
MHLA_HOST_DEVICE constexpr T load(T stored) {
  return stored;
}

/// Widens without rounding.
MHLA_HOST_DEVICE inline float load(BFloat16 stored) {
  return scalar_traits::reinterpret<float>(static_cast<std::uint32_t>(stored.bits) << 16);
}

/// Widens without rounding.
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

/// Rounds another floating-point type once, to nearest, ties to even. Integers do not compile: they
/// might be meant as representations.
template <scalar_traits::SixteenBitStorage Storage, class X>
MHLA_HOST_DEVICE void store(Storage& stored, X value) {
  static_assert(
      std::floating_point<X>,
      "mhla: store(x, value) takes a floating-point value; for a representation write x = "
      "mhla::BFloat16::from_bits(bits) or mhla::Half::from_bits(bits)");
  store(stored, scalar_traits::to_odd(value));
}

/// \}

MHLA_NAMESPACE_END
