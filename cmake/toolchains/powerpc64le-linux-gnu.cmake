# SPDX-License-Identifier: MIT
# 64-bit POWER, little-endian.
set(CMAKE_SYSTEM_PROCESSOR ppc64le)
set(prefix powerpc64le-linux-gnu)
include("${CMAKE_CURRENT_LIST_DIR}/emulated-linux.cmake")
