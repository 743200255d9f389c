# SPDX-License-Identifier: MIT
# Another Linux machine, whose CMAKE_SYSTEM_PROCESSOR and `prefix` of tools the including file sets, on
# Debian's and Ubuntu's packages of cross compilers. Programs run under qemu's user-mode emulation, tests
# among them.
set(CMAKE_SYSTEM_NAME Linux)
find_program(MHLA_CROSS_COMPILER ${prefix}-g++ DOC "The compiler for ${CMAKE_SYSTEM_PROCESSOR}")
find_program(MHLA_CROSS_EMULATOR qemu-${CMAKE_SYSTEM_PROCESSOR} DOC "What runs its programs")
if(NOT MHLA_CROSS_COMPILER OR NOT MHLA_CROSS_EMULATOR)
  message(FATAL_ERROR "To compile for ${CMAKE_SYSTEM_PROCESSOR} and to run that here, install g++-${prefix} and \
qemu-user (names of Debian and Ubuntu packages); found: compiler ${MHLA_CROSS_COMPILER}, emulator \
${MHLA_CROSS_EMULATOR}.")
endif()
set(CMAKE_CXX_COMPILER "${MHLA_CROSS_COMPILER}")
set(CMAKE_CROSSCOMPILING_EMULATOR "${MHLA_CROSS_EMULATOR}" -L /usr/${prefix})
