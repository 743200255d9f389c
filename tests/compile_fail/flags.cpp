// SPDX-License-Identifier: MIT
// Compilers, targets and flags that the library refuses.
// FLAGS: -std=c++17
// EXPECT: "mhla needs C++20: compile with -std=c++20"
// FLAGS: -U__GNUC__ -D__GNUC__=11 -U__clang_major__ -D__clang_major__=12
// EXPECT: "mhla needs g++ 12 or clang 13, or newer: this compiler is older"
// As MSVC, neither g++ nor clang.
// FLAGS: -U__GNUC__ -U__clang__
// EXPECT: mhla needs g++ 12 or clang 13, or newer: this compiler has no vector types
// i386, 32-bit Arm, x32.
// FLAGS: -U__SIZEOF_POINTER__ -D__SIZEOF_POINTER__=4
// EXPECT: "mhla needs a 64-bit target: sizes and hashes have 64 bits"
// Where the compiler assumes that there is no NaN.
// FLAGS: -ffast-math
// EXPECT: mhla: -ffast-math breaks comparisons with NaN: omit it, or define MHLA_ALLOW_FAST_MATH
// Where it reorders sums; clang says so in no macro.
// FLAGS (GNU): -funsafe-math-optimizations
// EXPECT: mhla: -fassociative-math breaks compensated sums: omit it, or define MHLA_ALLOW_FAST_MATH
#if __cplusplus < 202002L
#include <mhla/mhla.hpp>  // of which nothing else is read
#else
#include <mhla/policy/variant.hpp>
#endif
