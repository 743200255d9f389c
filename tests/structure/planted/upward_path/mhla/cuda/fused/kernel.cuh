// SPDX-License-Identifier: MIT
// A planted fault: see tests/structure/CMakeLists.txt.
#pragma once
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/paths/path.hpp>
