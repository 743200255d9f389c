// SPDX-License-Identifier: MIT
#include "tests/packed/units.hpp"

MHLA_TEST_ALL_UNITS()
