# SPDX-License-Identifier: MIT
# Reads the project's CMake files and fails on a variable for users (MHLA_..., of option, find_program or
# set with CACHE) that the table in cmake/README.md has not, or with another default, and on a line of the
# table for a variable that is gone.   cmake -DSOURCE_DIR=. -P tests/structure/options.cmake
cmake_minimum_required(VERSION 3.22...3.31)
set(faults "")
set(defined "")

file(READ "${SOURCE_DIR}/cmake/README.md" page)
set(files "")
foreach(folder IN ITEMS cmake tests bench examples)
  file(GLOB_RECURSE more "${SOURCE_DIR}/${folder}/*.cmake" "${SOURCE_DIR}/${folder}/CMakeLists.txt")
  list(APPEND files ${more})
endforeach()
list(FILTER files EXCLUDE REGEX "^${SOURCE_DIR}/tests/structure/planted/")

foreach(file IN ITEMS "${SOURCE_DIR}/CMakeLists.txt" LISTS files)
  file(READ "${file}" text)
  string(REPLACE ";" " " text "${text}")
  string(REGEX MATCHALL
    "(option|find_program)\\(MHLA_[A-Z0-9_]+[^()]*\\)|set\\(MHLA_[A-Z0-9_]+ [^()]* CACHE [A-Z]+" found "${text}")
  foreach(call IN LISTS found)
    string(REGEX MATCH "\\((MHLA_[A-Z0-9_]+)" ignored "${call}")
    set(name "${CMAKE_MATCH_1}")
    list(APPEND defined ${name})
    string(REGEX MATCH "\n\\| `${name}` \\| ([^|\n]*) \\|" row "${page}")
    set(listed "${CMAKE_MATCH_1}")
    if(NOT row)
      list(APPEND faults "${name} is not in the table")
    elseif(call MATCHES "^option.* (ON|OFF)\\)$" AND NOT listed STREQUAL "`${CMAKE_MATCH_1}`")
      list(APPEND faults "${name} is ${CMAKE_MATCH_1}, not ${listed}")
    endif()
  endforeach()
endforeach()
if(NOT defined)
  message(FATAL_ERROR "There is no option in ${SOURCE_DIR}.")
endif()

# Those of the two scripts are read by from_scratch.cmake alone.
string(REGEX MATCHALL "\n\\| `MHLA_[A-Z0-9_]+` \\|" rows "${page}")
foreach(row IN LISTS rows)
  string(REGEX MATCH "MHLA_[A-Z0-9_]+" name "${row}")
  if(NOT name IN_LIST defined AND NOT name MATCHES "^MHLA_(INSTALL_PACKAGES|BUILD_DIR)$")
    list(APPEND faults "${name} is in the table only")
  endif()
endforeach()

if(faults)
  list(JOIN faults "\n  " text)
  message(FATAL_ERROR "cmake/README.md does not list what CMake files have:\n  ${text}\n")
endif()
list(LENGTH defined count)
message(STATUS "${count} options, all of them listed")
