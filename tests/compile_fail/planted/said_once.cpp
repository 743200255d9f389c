// SPDX-License-Identifier: MIT
// A planted fault: of two mistakes one has its sentence.
// EXPECT 2: one sentence
#ifndef MHLA_CONTROL
static_assert(false, "one sentence");
#endif
