// SPDX-License-Identifier: MIT
// Before C++20: this, and none of the thousands of lines behind it.
// FLAGS: -std=c++17
// EXPECT: "mhla needs C++20: compile with -std=c++20"
// LINES: 20

#include <mhla/mhla.hpp>
