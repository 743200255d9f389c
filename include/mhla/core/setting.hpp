// SPDX-License-Identifier: MIT
// Checks of the numbers that variants and options are set to. Each throws ShapeError, which names
// the member and its value.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// Float's range: a call on floats would take what lies outside for 0 or infinity.
inline constexpr double smallest_setting = 0x1p-126;
inline constexpr double largest_setting = 0x1.fffffep127;

// A NaN holds no comparison.
MHLA_OUT_OF_LINE inline void require_not_negative(const char* member, double value) {
  if (value >= 0 && value <= largest_setting) return;
  throw ShapeError("mhla: ", member, " is ", value,
                   " but must be 0 or more, and finite, also as a float");
}
MHLA_OUT_OF_LINE inline void require_positive(const char* member, double value) {
  if (value >= smallest_setting && value <= largest_setting) return;
  throw ShapeError("mhla: ", member, " is ", value,
                   " but must be positive, and finite, also as a float");
}
MHLA_OUT_OF_LINE inline void require_at_least(const char* member, Index value, Index least) {
  if (value >= least) return;
  throw ShapeError("mhla: ", member, " is ", value, " but must be at least ", least);
}
template <class Enum>
void require_enumerator(const char* member, Enum value, Enum last) {
  const auto number = static_cast<Index>(value);
  if (number >= 0 && number <= static_cast<Index>(last)) return;
  throw ShapeError("mhla: ", member, " is ", number, ", which is none of its enumerators");
}
/// \endcond

MHLA_NAMESPACE_END
