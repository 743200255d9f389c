// SPDX-License-Identifier: MIT
// Every tolerance of the tests, with its derivation. u is the unit roundoff: 2^-24 = 6.0e-8 for
// float, 2^-53 = 1.1e-16 for double, 2^-64 = 5.4e-20 for x87 long double. None is widened without
// the reason written here.
#pragma once

#include <limits>
#include <mhla/core/scalar.hpp>
#include <type_traits>

namespace tolerance {

/// u of a floating-point type.
template <class T>
inline constexpr double unit_roundoff = static_cast<double>(std::numeric_limits<T>::epsilon()) / 2;

// Attention against the token-level oracle in double (long double for long double), as RMS ratio.
//
// Every output is a sum of about N signed products, rounded in another order than the oracle's, so
// errors grow like u sqrt(N). Measured with non-negative features and N = 64 to 4096: 10 u in
// double, 2.5 u in float (whose inputs' own rounding is in both runs), and in gradients up to 10 u.
// Gradients are products of two such sums and differences of them (the normalizer's term).
template <class T>
inline constexpr double forward_rms = 180 * unit_roundoff<T>;  // double 2e-14, long double 1e-17
template <>
inline constexpr double forward_rms<float> = 1e-6;  // 17 u

template <class T>
inline constexpr double gradient_rms = forward_rms<T>;
template <>
inline constexpr double gradient_rms<float> = 5e-6;  // 84 u

// The same, as the largest error in units of the RMS: a thousand normal errors reach 3.3 of their
// standard deviations, ten million 5.3, and outputs differ in size by a few.
template <class T>
inline constexpr double forward_max = 10 * forward_rms<T>;  // double 2e-13, float 1e-5
template <class T>
inline constexpr double gradient_max = 20 * gradient_rms<T>;  // double 4e-13, float 1e-4

// 16-bit tensors against the oracle in double on the same, already rounded, inputs: what remains is
// the rounding of the output, at most 2^-9 (bfloat16) and 2^-12 (half) relative to each element,
// 0.58 of it in RMS, and as much again for the float sums and for small elements.
template <>
inline constexpr double forward_rms<mhla::BFloat16> = 3e-3;
template <>
inline constexpr double forward_rms<mhla::Half> = 4e-4;

// Signed features under a normalizer: the denominator may nearly cancel, so each row is judged by
// its own condition: error <= signed_row_factor u sum |terms| / |den|, where `sum |terms|` adds up
// |weight v| of the row and |y| times |normalizing weight|. The factor covers sums of up to a few
// hundred terms in any order (sqrt(N), times 4 for the two sums and the products in them).
inline constexpr double signed_row_factor = 64;

// Any result against an exact one, element by element, in units of u times the sum of |terms| that
// tests/laws/harness/magnitude.hpp adds up. Terms round independently, so the sums' errors grow far
// slower than they do. Worst seen over 756 calls: 5.3 (dk of Favor); 0.9 where features are signed.
inline constexpr double roundings = 16;

// Golden cases: max |x - ref| <= golden<T> * tol_scale of the array, which holds its cancellation
// floor. The files agree with an independent double-precision formulation to 7e-15 of that scale;
// the rest covers N = 1024 tokens in the order of any backend.
template <class T>
inline constexpr double golden = 1e-12;
template <>
inline constexpr double golden<float> = 1e-5;

// Directional gradient check in double with the fourth-order stencil at steps 3e-3, 1e-3, 3e-4,
// relative to sum |gradient o direction|: truncation ~ h^4 = 8e-15 at the smallest step times
// fifth derivatives of order 1 to 100, rounding ~ u |loss| / h = 4e-13 times the loss' share.
// Worst seen 7e-12, typical 1e-13.
inline constexpr double gradient_check = 1e-11;

// Feature maps and rotations against formulas evaluated in long double: a handful of roundings, and
// exp(x) turns an argument's rounding u |x| into a relative error: |x| <= 16 in these tests.
template <class T>
inline constexpr double policy_value = 64 * unit_roundoff<T>;

// Two oracles that form the same sums in the same order but for a factor distributed over them.
template <class T>
inline constexpr double oracle_rms = 32 * unit_roundoff<T>;

}  // namespace tolerance
