// SPDX-License-Identifier: MIT
// A compiler that is neither g++ nor clang, as MSVC.
// FLAGS: -U__GNUC__
// FLAGS: -U__clang__
// EXPECT: mhla needs g++ 12 or clang 13, or newer: this compiler has no vector types
// LINES: 20

#include <mhla/core/config.hpp>
