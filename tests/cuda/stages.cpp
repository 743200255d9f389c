// SPDX-License-Identifier: MIT
// What stages on a device refuse besides what those on the CPU do.
#include <mhla/cuda/stages.cuh>
// After it, so that the stand-ins were found first.
#include <vector>

#include "tests/cuda/machine.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"
