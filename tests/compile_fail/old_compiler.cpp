// SPDX-License-Identifier: MIT
// A compiler whose version is too low says so, and nothing else.
// FLAGS: -U__GNUC__
// FLAGS: -D__GNUC__=11
// FLAGS: -U__clang_major__
// FLAGS: -D__clang_major__=12
// EXPECT: "mhla needs g++ 12 or clang 13, or newer: this compiler is older"
// LINES: 20

#include <mhla/core/config.hpp>
