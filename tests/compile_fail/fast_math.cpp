// SPDX-License-Identifier: MIT
// Where the compiler assumes that there is no NaN.
// FLAGS: -ffast-math
// EXPECT: mhla: -ffast-math breaks comparisons with NaN: omit it, or define MHLA_ALLOW_FAST_MATH

#include <mhla/policy/variant.hpp>
