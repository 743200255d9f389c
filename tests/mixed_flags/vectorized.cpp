// SPDX-License-Identifier: MIT
#define MHLA_TEST_PART vectorized
#include "tests/mixed_flags/part.inc"
