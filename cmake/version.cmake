# SPDX-License-Identifier: MIT
# The version, as include/mhla/version.hpp has it: a program that merely adds include/ to its search path
# knows it too.
function(mhla_read_version version)
  set(numbers "")
  foreach(part IN ITEMS MAJOR MINOR PATCH)
    file(STRINGS "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../include/mhla/version.hpp" line
         REGEX "^#define MHLA_VERSION_${part} [0-9]+$")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND numbers ${number})
  endforeach()
  list(JOIN numbers "." numbers)
  set(${version} "${numbers}" PARENT_SCOPE)
endfunction()
