// SPDX-License-Identifier: MIT
// Catch2's main(), where no library of Catch2 brings it.
#define CATCH_CONFIG_MAIN
#include "tests/support/catch.hpp"
