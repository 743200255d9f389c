// SPDX-License-Identifier: MIT
// Catch2's main(). Version 3 brings it in a library of its own; then nothing is left to do here.
#define CATCH_CONFIG_MAIN
#include "tests/support/catch.hpp"
