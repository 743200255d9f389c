// SPDX-License-Identifier: MIT
// Checks of numeric members of variants and options. Each throws a ShapeError that names the member
// and its value.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// The range of normal floats: a call on floats would take numbers outside it for 0 or infinity.
inline constexpr double smallest_setting = 0x1p-126;
inline constexpr double largest_setting = 0x1.fffffep127;

// Comparisons with NaN are false, so that these checks refuse it.
MHLA_ONCE_A_CALL inline void require_not_negative(const char* member, double value) {
  if (value >= 0 && value <= largest_setting) return;
  throw ShapeError(
      {"mhla: ", member, " is ", value, " but must be at least 0, and finite as a float"});
}
MHLA_ONCE_A_CALL inline void require_positive(const char* member, double value) {
  if (value >= smallest_setting && value <= largest_setting) return;
  throw ShapeError(
      {"mhla: ", member, " is ", value, " but must be positive, and finite as a float"});
}
MHLA_ONCE_A_CALL inline void require_at_least(const char* member, Index value, Index least) {
  if (value >= least) return;
  throw ShapeError({"mhla: ", member, " is ", value, " but must be at least ", least});
}
template <class Enum>
void require_enumerator(const char* member, Enum value, Enum last) {
  const auto number = static_cast<Index>(value);
  if (number >= 0 && number <= static_cast<Index>(last)) return;
  throw ShapeError({"mhla: ", member, " is ", number, " but must be an enumerator, 0 to ",
                    static_cast<Index>(last)});
}
/// \endcond

MHLA_NAMESPACE_END
