# SPDX-License-Identifier: MIT
# Reads the library and fails on a function of more than eight parameters: what belongs together
# makes a struct with a name.   cmake -DINCLUDE_DIR=include -P tests/structure/parameters.cmake

set(most 8)
# Public functions that take what stands in their formulas, one by one.
set(formula forward_into backward_into mhla_backward mhla_weights read_out_gradient summarize_gradient
    advance_gradient)

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

# Replaces what matches until nothing does: from the inside out.
macro(replace_nested pattern by text)
  set(before "")
  while(NOT before STREQUAL ${text})
    set(before "${${text}}")
    string(REGEX REPLACE "${pattern}" "${by}" ${text} "${${text}}")
  endwhile()
endmacro()

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

report("More than ${most} parameters" headers "headers, no function of more than ${most} parameters")
