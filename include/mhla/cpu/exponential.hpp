// SPDX-License-Identifier: MIT
// The exponential by arithmetic only, without calls or branches, so that compilers vectorize loops
// over it; and the feature maps built on it, in float.
#pragma once

#include <bit>
#include <mhla/policy/feature_map.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

// Always inlined into kernels: a function that is called would be compiled without the kernel's
// instructions, and without FMA its last bits would differ.
#define MHLA_IN_KERNEL __attribute__((always_inline)) inline

/// e^x = 2^n e^r, n an integer and |r| <= ln(2) / 2, to 1.1 units in the last place; 0 or infinity
/// outside float's range, NaN for NaN.
MHLA_IN_KERNEL float exponential(float x) {
  // Adding and subtracting `shift` must not cancel, even if flags let the compiler reorder sums.
#if defined(__clang__)
#pragma clang fp reassociate(off)
#define MHLA_IN_ORDER(sum) (sum)
#elif defined(__ASSOCIATIVE_MATH__)
#define MHLA_IN_ORDER(sum) __builtin_assoc_barrier(sum)  // cannot be vectorized
#else
#define MHLA_IN_ORDER(sum) (sum)
#endif
  // Beyond these the result is 0 or infinity. (NaN is in between.)
  constexpr float lowest = -104;
  constexpr float highest = 89;
  // 1.5 * 2^23: adding a number to it rounds that to an integer, which is then in the lowest bits.
  constexpr float shift = 12582912;
  constexpr float log2_e = 1.44269504f;
  // ln(2) in two parts, the first with few enough bits that n times it is exact.
  constexpr float ln2_high = 0.693359375f;
  constexpr float ln2_low = -2.12194440e-4f;

  x = x < lowest ? lowest : x;
  x = x > highest ? highest : x;
  const float shifted = MHLA_IN_ORDER(x * log2_e + shift);
#undef MHLA_IN_ORDER
  const float n = shifted - shift;
  const float r = (x - n * ln2_high) - n * ln2_low;
  // (e^r - 1 - r) / r^2, interpolated at five Chebyshev nodes: e^r to 1.1e-8.
  float p = 1.3926213e-3f;
  p = p * r + 8.3632031e-3f;
  p = p * r + 4.16665561e-2f;
  p = p * r + 0.166665763f;
  p = p * r + 0.5f;
  const float power = (p * (r * r) + r) + 1.0f;
  // 2^n in two factors, neither of which leaves the range if the product does not.
  const auto whole = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) -
                                               std::bit_cast<std::uint32_t>(shift));
  const std::int32_t half = whole >> 1;
  const auto two_to = [](std::int32_t exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  };
  return power * two_to(half) * two_to(whole - half);
}

/// phi(x), and phi'(x), of an element of a row.
template <class Map, class T>
MHLA_IN_KERNEL T value_of(const Map& map, T x) {
  return map.value(x);
}
template <class Map, class T>
MHLA_IN_KERNEL T derivative_of(const Map& map, T x) {
  return map.derivative(x);
}

MHLA_IN_KERNEL float value_of(const Exp&, float x) { return exponential(x); }
MHLA_IN_KERNEL float derivative_of(const Exp&, float x) { return exponential(x); }

MHLA_IN_KERNEL float value_of(const EluPlusOne&, float x) {
  const float below = exponential(x);
  const float above = x + 1.0f;
  return x > 0.0f ? above : below;
}
MHLA_IN_KERNEL float derivative_of(const EluPlusOne&, float x) {
  const float below = exponential(x);
  return x > 0.0f ? 1.0f : below;
}

#undef MHLA_IN_KERNEL

}  // namespace cpu

MHLA_NAMESPACE_END
