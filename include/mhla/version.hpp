// SPDX-License-Identifier: MIT
// The version of the library. CMake reads these three numbers from here, so that a program that
// merely adds include/ to its search path knows its version too.
#pragma once

#define MHLA_VERSION_MAJOR 0
#define MHLA_VERSION_MINOR 2
#define MHLA_VERSION_PATCH 0

/// One comparable number: 0.2.0 is 200, 1.2.3 is 10203.
#define MHLA_VERSION (MHLA_VERSION_MAJOR * 10000 + MHLA_VERSION_MINOR * 100 + MHLA_VERSION_PATCH)
