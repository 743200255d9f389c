// SPDX-License-Identifier: MIT
// What an implementation of MHLA may differ by from the oracles of mhla/reference, for each scalar:
// the bounds that the library's own tests hold it to.
//
//   const auto error = testing::compare(y.view(), expected.view());
//   CHECK(error.rms_ratio <= testing::tolerance::forward_rms<float>);
//   CHECK(error.max_ratio <= testing::tolerance::forward_max<float>);
#pragma once

#include <limits>
#include <mhla/core/scalar.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup testing
/// \{

/// Bounds that the library's own tests hold it to, for each scalar.
namespace testing::tolerance {

/// u of a floating-point type.
template <class T>
inline constexpr double unit_roundoff = static_cast<double>(std::numeric_limits<T>::epsilon()) / 2;

/// An output against the oracle evaluated in double (for long double in long double), as
/// compare(...).rms_ratio.
//
// Every output is a sum of about N signed products, rounded in another order than the oracle's, so
// errors grow like u sqrt(N). Measured with non-negative features and N = 64 to 4096: 10 u in
// double, 2.5 u in float (whose inputs' own rounding is in both runs), and in gradients up to 10 u.
// Gradients are products of two such sums and differences of them (the normalizer's term).
template <class T>
inline constexpr double forward_rms = 180 * unit_roundoff<T>;  // double 2e-14, long double 1e-17
/// Of float.
template <>
inline constexpr double forward_rms<float> = 1e-6;  // 17 u

/// Likewise dq, dk, dv and, for the type it is stored in, dmix.
template <class T>
inline constexpr double gradient_rms = forward_rms<T>;
/// Of float.
template <>
inline constexpr double gradient_rms<float> = 5e-6;  // 84 u

/// Bounds on compare(...).max_ratio, the largest error in units of the RMS.
// A thousand normal errors reach 3.3 of their
// standard deviations, ten million 5.3, and outputs differ in size by a few.
template <class T>
inline constexpr double forward_max = 10 * forward_rms<T>;  // double 2e-13, float 1e-5
/// Likewise of gradients.
template <class T>
inline constexpr double gradient_max = 20 * gradient_rms<T>;  // double 4e-13, float 1e-4

/// Of bfloat16.
// 16-bit tensors against the oracle in double on the same, already rounded, inputs: what remains is
// the rounding of the output, at most 2^-9 (bfloat16) and 2^-12 (half) relative to each element,
// 0.58 of it in RMS, and as much again for the float sums and for small elements.
template <>
inline constexpr double forward_rms<mhla::BFloat16> = 3e-3;
/// Of half.
template <>
inline constexpr double forward_rms<mhla::Half> = 4e-4;

}  // namespace testing::tolerance

/// \}

MHLA_NAMESPACE_END
