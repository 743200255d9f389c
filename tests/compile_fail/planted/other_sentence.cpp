// SPDX-License-Identifier: MIT
// A planted fault: the compiler says something else.
// EXPECT: one sentence
#ifndef MHLA_CONTROL
static_assert(false, "another sentence");
#endif
