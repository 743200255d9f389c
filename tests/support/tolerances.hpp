// SPDX-License-Identifier: MIT
// Every tolerance of the tests, with its derivation. u is the unit roundoff: 2^-24 = 6.0e-8 for
// float, 2^-53 = 1.1e-16 for double, 2^-64 = 5.4e-20 for x87 long double. None is widened without
// the reason written here.
#pragma once

#include <limits>
#include <mhla/testing/comparison.hpp>
#include <type_traits>

namespace tolerance {

using namespace mhla::testing::tolerance;

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
