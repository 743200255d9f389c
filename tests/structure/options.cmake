# SPDX-License-Identifier: MIT
# Reads the project's CMake files and fails on a variable for users (MHLA_..., of option, find_program or
# set with CACHE) that the table in cmake/README.md has not, or with another default, and on a line of the
# table for a variable that is gone.   cmake -DSOURCE_DIR=. -P tests/structure/options.cmake
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(defined "")

file(READ "${SOURCE_DIR}/cmake/README.md" page)
set(files "")
foreach(folder IN ITEMS cmake tests bench examples)
  file(GLOB_RECURSE more "${SOURCE_DIR}/${folder}/*.cmake" "${SOURCE_DIR}/${folder}/CMakeLists.txt")
  list(APPEND files ${more})
endforeach()
list(FILTER files EXCLUDE REGEX "^${SOURCE_DIR}/tests/structure/planted/")

foreach(file IN LISTS files ITEMS "${SOURCE_DIR}/CMakeLists.txt")
  file(READ "${file}" text)
  string(REPLACE ";" " " text "${text}")
  string(REGEX MATCHALL
    "(option|find_program)\\(MHLA_[A-Z0-9_]+[^()]*\\)|set\\(MHLA_[A-Z0-9_]+ [^\n]* CACHE [A-Z]+" found "${text}")
  foreach(call IN LISTS found)
    string(REGEX MATCH "\\((MHLA_[A-Z0-9_]+)" ignored "${call}")
    set(name "${CMAKE_MATCH_1}")
    list(APPEND defined ${name})
    string(REGEX MATCH "\n\\| `${name}` \\| ([^|\n]*) \\|" row "${page}")
    set(listed "${CMAKE_MATCH_1}")
    if(NOT row)
      list(APPEND faults "${name} is not in the table")
    elseif(call MATCHES "^option.* (ON|OFF)\\)$")
      set(default "${CMAKE_MATCH_1}")
      if(NOT listed STREQUAL "`${default}`")
        list(APPEND faults "${name} is ${default}, not ${listed}")
      endif()
    endif()
  endforeach()
endforeach()
# Those of the two scripts are read by from_scratch.cmake alone.
string(REGEX MATCHALL "\n\\| `MHLA_[A-Z0-9_]+` \\|" rows "${page}")
foreach(row IN LISTS rows)
  string(REGEX MATCH "MHLA_[A-Z0-9_]+" name "${row}")
  if(NOT name IN_LIST defined AND NOT name MATCHES "^MHLA_(INSTALL_PACKAGES|BUILD_DIR)$")
    list(APPEND faults "${name} is in the table only")
  endif()
endforeach()

report("cmake/README.md does not list what CMake files have" defined "options, all of them listed")
