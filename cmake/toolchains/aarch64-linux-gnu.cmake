# SPDX-License-Identifier: MIT
# 64-bit ARM.
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(prefix aarch64-linux-gnu)
include("${CMAKE_CURRENT_LIST_DIR}/emulated-linux.cmake")
