// SPDX-License-Identifier: MIT
// A planted fault: see tests/structure/CMakeLists.txt.
#pragma once
