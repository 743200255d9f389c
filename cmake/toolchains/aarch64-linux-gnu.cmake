# SPDX-License-Identifier: MIT
# 64-bit ARM from another Linux machine, on Debian's and Ubuntu's packages of cross compilers. Programs
# run under qemu's user-mode emulation, tests among them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

find_program(MHLA_CROSS_COMPILER aarch64-linux-gnu-g++ DOC "The compiler for 64-bit ARM")
find_program(MHLA_CROSS_EMULATOR qemu-aarch64 DOC "What runs its programs")
if(NOT MHLA_CROSS_COMPILER OR NOT MHLA_CROSS_EMULATOR)
  message(FATAL_ERROR "To compile for aarch64 and to run that here, install g++-aarch64-linux-gnu and \
qemu-user (names of Debian and Ubuntu packages); found: compiler ${MHLA_CROSS_COMPILER}, emulator \
${MHLA_CROSS_EMULATOR}.")
endif()
set(CMAKE_CXX_COMPILER "${MHLA_CROSS_COMPILER}")
set(CMAKE_CROSSCOMPILING_EMULATOR "${MHLA_CROSS_EMULATOR}" -L /usr/aarch64-linux-gnu)

