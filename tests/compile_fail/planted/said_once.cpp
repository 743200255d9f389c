// SPDX-License-Identifier: MIT
// A planted fault: of two mistakes one has its sentence.
#ifndef MHLA_CONTROL
// EXPECT: one sentence
static_assert(false, "one sentence");
// EXPECT: one sentence
static_assert(true, "one sentence");
#endif
