# SPDX-License-Identifier: MIT
# mhla_own_program: what our tests, examples and benchmarks compile with. Never exported.
find_package(Threads REQUIRED)
set(CMAKE_CXX_EXTENSIONS OFF)

# What the headers compile without. (clang says of every widening to a wider float that it promotes.)
set(MHLA_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast -Wcast-qual)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND MHLA_WARNINGS -Wuseless-cast -Wdouble-promotion)
endif()
if(MHLA_WARNINGS_AS_ERRORS)
  list(APPEND MHLA_WARNINGS -Werror)
endif()

add_library(mhla_own_program INTERFACE)
target_link_libraries(mhla_own_program INTERFACE mhla::mhla Threads::Threads)
target_compile_definitions(mhla_own_program INTERFACE MHLA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  target_compile_options(mhla_own_program INTERFACE ${MHLA_WARNINGS})
endif()
