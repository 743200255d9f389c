# SPDX-License-Identifier: MIT
# mhla_own_program: what our tests, examples and benchmarks compile with. Never exported.
find_package(Threads REQUIRED)
set(CMAKE_CXX_EXTENSIONS OFF)

set(MHLA_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast -Wcast-qual)
# Of the headers alone: tests widen on purpose, and cast for other platforms.
set(MHLA_HEADER_WARNINGS -Wdouble-promotion $<$<CXX_COMPILER_ID:GNU>:-Wuseless-cast>)
if(MHLA_WARNINGS_AS_ERRORS)
  list(APPEND MHLA_WARNINGS -Werror)
endif()

add_library(mhla_own_program INTERFACE)
target_link_libraries(mhla_own_program INTERFACE mhla::mhla Threads::Threads)
target_compile_definitions(mhla_own_program INTERFACE MHLA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  target_compile_options(mhla_own_program INTERFACE ${MHLA_WARNINGS}
    # Looks for garbage from 500 MB on, which saves a tenth of the time.
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=500000>)
endif()
