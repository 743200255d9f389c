# SPDX-License-Identifier: MIT
# Builds the API reference into a folder, and fails where a public entity has no documentation:
#
#   cmake -DOUTPUT=<folder> [-DOPTIONAL=ON] -P cmake/docs/doxygen.cmake
#
# Without doxygen it fails as well or, with OPTIONAL, says that it was skipped. EXTRA_INPUT is one more
# header, for tests.
cmake_minimum_required(VERSION 3.22...3.31)
get_filename_component(SOURCE_DIR "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)

find_program(DOXYGEN doxygen)
if(NOT DOXYGEN)
  set(lack "the API reference needs doxygen 1.9.4 or newer, and it was not found: install it (Debian \
and Ubuntu: doxygen).")
  if(OPTIONAL)
    message("Skipped: ${lack}")
    return()
  endif()
  message(FATAL_ERROR "${lack}")
endif()

include("${CMAKE_CURRENT_LIST_DIR}/public_headers.cmake")
list(TRANSFORM MHLA_PUBLIC_HEADERS PREPEND "${SOURCE_DIR}/include/mhla/")
set(INPUT "${CMAKE_CURRENT_LIST_DIR}/pages.dox" ${MHLA_PUBLIC_HEADERS} ${EXTRA_INPUT})
list(TRANSFORM INPUT REPLACE "(.+)" "\"\\1\"")
list(JOIN INPUT " " INPUT)
include("${SOURCE_DIR}/cmake/version.cmake")
mhla_read_version(VERSION)

file(REMOVE_RECURSE "${OUTPUT}/html")
file(REMOVE "${OUTPUT}/warnings.txt" "${OUTPUT}/mhla.tag")
configure_file("${CMAKE_CURRENT_LIST_DIR}/Doxyfile.in" "${OUTPUT}/Doxyfile" @ONLY)
execute_process(COMMAND "${DOXYGEN}" "${OUTPUT}/Doxyfile" RESULT_VARIABLE status ERROR_VARIABLE errors)
set(warnings "")
if(EXISTS "${OUTPUT}/warnings.txt")
  file(READ "${OUTPUT}/warnings.txt" warnings)
endif()
if(status OR errors OR warnings)
  message("${errors}${warnings}")
  message(FATAL_ERROR "doxygen ended with ${status} and the warnings above.")
endif()

# Groups and namespaces list the same members under one anchor.
file(STRINGS "${OUTPUT}/mhla.tag" classes REGEX "<compound kind=\"(class|struct|concept)\"")
file(STRINGS "${OUTPUT}/mhla.tag" members REGEX "<anchor>")
list(REMOVE_DUPLICATES members)
list(APPEND members ${classes})
list(LENGTH members count)
if(count LESS 300)
  message(FATAL_ERROR "doxygen found ${count} documented entities only: see ${OUTPUT}/Doxyfile.")
endif()
message("${count} documented entities; the start page is ${OUTPUT}/html/index.html")
