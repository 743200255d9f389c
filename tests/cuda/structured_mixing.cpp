// SPDX-License-Identifier: MIT
// placeholder
#include "tests/support/catch.hpp"
