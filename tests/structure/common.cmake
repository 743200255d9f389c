# SPDX-License-Identifier: MIT
# What the scripts of this folder share: the headers of INCLUDE_DIR, without its pages, and how faults are reported.
cmake_minimum_required(VERSION 3.22...3.31)
set(faults "")

if(INCLUDE_DIR)
  get_filename_component(INCLUDE_DIR "${INCLUDE_DIR}" ABSOLUTE)
  file(GLOB_RECURSE headers RELATIVE "${INCLUDE_DIR}/mhla" "${INCLUDE_DIR}/mhla/*")
  list(FILTER headers EXCLUDE REGEX "[.]md$")
endif()

# report(what is wrong, what was read, what is right of it)
function(report wrong all right)
  if(faults)
    list(JOIN faults "\n  " text)
    message(FATAL_ERROR "${wrong}:\n  ${text}\n")
  endif()
  list(LENGTH ${all} count)
  if(count EQUAL 0)
    message(FATAL_ERROR "There is nothing to read in ${INCLUDE_DIR}${SOURCE_DIR}.")
  endif()
  message(STATUS "${count} ${right}")
endfunction()
