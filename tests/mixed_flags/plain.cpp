// SPDX-License-Identifier: MIT
#define MHLA_TEST_PART plain
#include "tests/mixed_flags/part.inc"
