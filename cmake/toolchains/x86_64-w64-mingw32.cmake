# SPDX-License-Identifier: MIT
# 64-bit Windows by MinGW-w64, whose programs wine runs.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
find_program(MHLA_CROSS_COMPILER x86_64-w64-mingw32-g++-posix DOC "The compiler for Windows")
find_program(MHLA_CROSS_EMULATOR NAMES wine64 wine DOC "What runs its programs")
if(NOT MHLA_CROSS_COMPILER OR NOT MHLA_CROSS_EMULATOR)
  message(FATAL_ERROR "To compile for Windows and to run that here, install g++-mingw-w64-x86-64-posix and wine64 \
(names of Debian and Ubuntu packages); found: compiler ${MHLA_CROSS_COMPILER}, emulator ${MHLA_CROSS_EMULATOR}.")
endif()
set(CMAKE_CXX_COMPILER "${MHLA_CROSS_COMPILER}")
set(CMAKE_CROSSCOMPILING_EMULATOR "${MHLA_CROSS_EMULATOR}")
# Programs that need no DLL beside them.
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
# Tests of many variants have more sections than an object file has by default.
set(CMAKE_CXX_FLAGS_INIT -Wa,-mbig-obj)
