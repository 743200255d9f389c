# SPDX-License-Identifier: MIT
# 64-bit RISC-V.
set(CMAKE_SYSTEM_PROCESSOR riscv64)
set(prefix riscv64-linux-gnu)
include("${CMAKE_CURRENT_LIST_DIR}/emulated-linux.cmake")
