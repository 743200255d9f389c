# SPDX-License-Identifier: MIT
# Writes <mhla/mhla.hpp> and <mhla/fork_join.hpp> as one file, which needs nothing but Eigen:
#   cmake -DOUTPUT=mhla.hpp -P cmake/single_header.cmake
# What only tests and examinations of a model need is left out (testing/, reference/, diagnostics/), and
# CUDA, whose kernels are compiled by nvcc from a file of their own.
cmake_minimum_required(VERSION 3.22...3.31)

set(include_dir "${CMAKE_CURRENT_LIST_DIR}/../include")
if(NOT OUTPUT)
  message(FATAL_ERROR "Say where it goes: cmake -DOUTPUT=mhla.hpp -P cmake/single_header.cmake")
endif()
get_filename_component(OUTPUT "${OUTPUT}" ABSOLUTE)

# Appends a header of ours to the file, and first what it includes of ours, in their places. What says
# `#pragma once` comes once; the others (.inc) come each time, as the macros around them change. Texts
# are never put into lists: CMake would take their brackets and semicolons for its own.
function(append header)
  file(READ "${include_dir}/${header}" rest)
  if(rest MATCHES "\n#pragma once\n")
    get_property(done GLOBAL PROPERTY "done_${header}")
    if(done)
      return()
    endif()
    set_property(GLOBAL PROPERTY "done_${header}" TRUE)
    string(REPLACE "\n#pragma once\n" "\n" rest "${rest}")
  endif()
  string(REGEX REPLACE "^// SPDX[^\n]*\n" "" rest "${rest}")
  # Without what an .inc file includes for an editor that opens it by itself.
  string(REGEX REPLACE "#if !defined\\(MHLA_ISA\\)[^#]*(#include [^\n]*\n)+#endif\n" "" rest "${rest}")
  set(rest "\n// <${header}>\n${rest}")
  while(rest MATCHES "\n#include <(mhla/[^ >]+)>")
    set(included "${CMAKE_MATCH_1}")
    string(FIND "${rest}" "${CMAKE_MATCH_0}" begin)
    string(LENGTH "${CMAKE_MATCH_0}" length)
    string(SUBSTRING "${rest}" 0 ${begin} text)
    math(EXPR end "${begin} + ${length}")
    string(SUBSTRING "${rest}" ${end} -1 rest)
    file(APPEND "${OUTPUT}.part" "${text}")
    append(${included})
  endwhile()
  file(APPEND "${OUTPUT}.part" "${rest}")
endfunction()

include("${CMAKE_CURRENT_LIST_DIR}/version.cmake")
mhla_read_version(version)
file(WRITE "${OUTPUT}.part" "// SPDX-License-Identifier: MIT
// mhla ${version}: token-level Multi-Head Linear Attention over Eigen tensors, on the CPU. Written by
// cmake/single_header.cmake: do not edit. It takes the place of <mhla/mhla.hpp> and
// <mhla/fork_join.hpp>, and does not go together with them.
#ifndef MHLA_SINGLE_HEADER
#define MHLA_SINGLE_HEADER
")
append(mhla/mhla.hpp)
append(mhla/fork_join.hpp)
append(mhla/eigen/fork_join_device.hpp)
file(APPEND "${OUTPUT}.part" "\n#endif  // MHLA_SINGLE_HEADER\n")

file(STRINGS "${OUTPUT}.part" left REGEX "^[ \t]*#[ \t]*include[ \t]*(<mhla/|\")")
if(left)
  message(FATAL_ERROR "These includes were not replaced: ${left}")
endif()
file(RENAME "${OUTPUT}.part" "${OUTPUT}")
message(STATUS "mhla ${version} as one header: ${OUTPUT}")
