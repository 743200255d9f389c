// SPDX-License-Identifier: MIT
// The library's one index type, and arithmetic on sizes that cannot wrap silently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mhla/core/error.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

/// Signed 64-bit on every supported platform: extents, strides and offsets, in elements.
/// \ingroup views
using Index = std::ptrdiff_t;

/// \cond INTERNAL
// Throws that "a sign b" does not fit an Index.
[[gnu::__noreturn__]] MHLA_ONCE_A_CALL inline void throw_overflow(Index a, const char* sign,
                                                                  Index b) {
  throw ShapeError({"mhla: a size overflows 64 bits: ", a, sign, b});
}

// a * b for sizes; throws ShapeError if the product does not fit an Index.
constexpr Index checked_mul(Index a, Index b) {
  Index product = 0;
  if (__builtin_mul_overflow(a, b, &product)) throw_overflow(a, " * ", b);
  return product;
}

// a + b for sizes; throws ShapeError if the sum does not fit an Index.
constexpr Index checked_add(Index a, Index b) {
  Index sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) throw_overflow(a, " + ", b);
  return sum;
}

// a * b for sizes, or the largest Index if it does not fit: for device code, which cannot throw.
MHLA_HOST_DEVICE constexpr Index saturated_mul(Index a, Index b) {
  constexpr Index most = PTRDIFF_MAX;
  return a > 0 && b > most / a ? most : a * b;
}

// ceil(a / b) for a >= 0, b > 0; of two ints in 32 bits, which a GPU divides several times as fast.
template <class A, class B>
MHLA_HOST_DEVICE constexpr auto ceil_div(A a, B b) {
  return a / b + (a % b != 0);
}

// Start of part `part` when `count` items are split evenly, in order, into `parts`; the first
// count % parts parts get one more. even_split(count, parts, parts) == count.
template <class A>
MHLA_HOST_DEVICE constexpr A even_split(A count, std::type_identity_t<A> parts,
                                        std::type_identity_t<A> part) {
  const A rest = count % parts;
  return part * (count / parts) + (part < rest ? part : rest);
}
/// \endcond

MHLA_NAMESPACE_END
