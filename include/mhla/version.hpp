// SPDX-License-Identifier: MIT
// The version of the library. CMake reads these three numbers from here.
#pragma once

/// \addtogroup macros
/// \{

/// Of this library, as are the next two.
#define MHLA_VERSION_MAJOR 0
/// See MHLA_VERSION_MAJOR.
#define MHLA_VERSION_MINOR 2
/// See MHLA_VERSION_MAJOR.
#define MHLA_VERSION_PATCH 0

/// One comparable number: 0.2.0 is 200, 1.2.3 is 10203.
#define MHLA_VERSION (MHLA_VERSION_MAJOR * 10000 + MHLA_VERSION_MINOR * 100 + MHLA_VERSION_PATCH)

/// \}
