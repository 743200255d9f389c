// SPDX-License-Identifier: MIT
// i386, 32-bit Arm, x32.
// FLAGS: -U__SIZEOF_POINTER__
// FLAGS: -D__SIZEOF_POINTER__=4
// EXPECT: "mhla needs a 64-bit target: sizes and hashes have 64 bits"
// LINES: 20

#include <mhla/core/config.hpp>
