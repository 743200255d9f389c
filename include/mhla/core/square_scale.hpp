// SPDX-License-Identifier: MIT
// Sums of squares of numbers whose squares are none.
#pragma once

#include <cmath>
#include <mhla/core/config.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// A power of two, divided by which numbers up to `largest` have squares that neither overflow nor
// vanish; 1 if that is 0 or not finite.
template <class T>
T square_scale(T largest) {
  return largest > 0 && (std::isfinite)(largest) ? std::ldexp(T(1), std::ilogb(largest)) : T(1);
}
/// \endcond

MHLA_NAMESPACE_END
