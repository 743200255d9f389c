// SPDX-License-Identifier: MIT
// A planted fault: the mistake is not the only one.
// EXPECT: one sentence
static_assert(false, "one sentence");
