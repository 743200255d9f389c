// SPDX-License-Identifier: MIT
// Where the compiler reorders sums. clang says so in no macro.
// GNU ONLY
// FLAGS: -funsafe-math-optimizations
// EXPECT: mhla: -fassociative-math breaks compensated sums
// EXPECT: omit it, or define MHLA_ALLOW_FAST_MATH
// LINES: 20

#include <mhla/policy/variant.hpp>
