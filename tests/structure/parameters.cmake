# SPDX-License-Identifier: MIT
# Reads the library and fails on a function of more than ten parameters: what belongs together makes
# a struct with a name.   cmake -DINCLUDE_DIR=include -P tests/structure/parameters.cmake

set(most 10)
set(exempt "^cuda/fused/") # kernels
set(formula "backward_into") # takes what stands in its formula, one by one

cmake_minimum_required(VERSION 3.22...3.31)
get_filename_component(INCLUDE_DIR "${INCLUDE_DIR}" ABSOLUTE)
file(GLOB_RECURSE headers RELATIVE "${INCLUDE_DIR}/mhla" "${INCLUDE_DIR}/mhla/*")
list(FILTER headers EXCLUDE REGEX "[.]md$")
list(FILTER headers EXCLUDE REGEX "${exempt}")
if(NOT headers)
  message(FATAL_ERROR "There is no header in ${INCLUDE_DIR}/mhla.")
endif()

# Replaces what matches until nothing does: from the inside out.
macro(replace_nested pattern by text)
  set(before "")
  while(NOT before STREQUAL ${text})
    set(before "${${text}}")
    string(REGEX REPLACE "${pattern}" "${by}" ${text} "${${text}}")
  endwhile()
endmacro()

set(faults "")
foreach(header IN LISTS headers)
  file(READ "${INCLUDE_DIR}/mhla/${header}" text)
  string(REGEX REPLACE "//[^\n]*|\"[^\"\n]*\"" "" text "${text}")
  string(REGEX REPLACE "[][;\\\\]" "|" text "${text}") # they mean something in CMake's lists
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
  replace_nested("<[^<>(){}|]*>" "" text)
  while(text MATCHES "\\([^()]*\\)")
    string(REGEX MATCHALL "[A-Za-z_0-9]* ?\\([^()]*\\)" lists "${text}")
    foreach(parameters IN LISTS lists)
      string(REGEX MATCHALL "," commas "${parameters}")
      list(LENGTH commas count)
      math(EXPR count "${count} + 1")
      # Two words beside each other are a type and a name: this is no call.
      if(count GREATER most AND parameters MATCHES "[(,] ?(const )?[A-Za-z_0-9:]+[&*.]* [a-z_0-9]+ ?[,)]")
        string(REGEX REPLACE " ?\\(.*" "" name "${parameters}")
        if(NOT name IN_LIST formula)
          list(APPEND faults "${header}: ${name} has ${count} parameters")
        endif()
      endif()
    endforeach()
    string(REGEX REPLACE "\\([^()]*\\)" "@" text "${text}")
  endwhile()
endforeach()

if(faults)
  list(JOIN faults "\n  " text)
  message(FATAL_ERROR "More than ${most} parameters:\n  ${text}\n")
endif()
list(LENGTH headers count)
message(STATUS "${count} headers, no function of more than ${most} parameters")
