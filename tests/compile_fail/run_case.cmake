# SPDX-License-Identifier: MIT
# One file of mistakes, CASE. All of them stand between #ifndef MHLA_CONTROL and #endif (an #else may
# show what is right), each below a line
#   // EXPECT: a sentence
# or, all together, in lines at the top, `// EXPECT 2: a sentence` for two mistakes of one kind.
# The file must fail to compile, with each sentence in as many errors as lines expect it and at most 20
# lines of g++'s output for each, or `// LINES: 30`; and, to show that nothing but the mistakes is wrong, it must compile with
# MHLA_CONTROL defined, which is tried if CONTROL is on. `// FIRST: sentence` is what the first error is.
# Where mistakes are in the flags, a line `// FLAGS: -std=c++17` begins a compilation of its own, which
# the lines below it are about; `// FLAGS (GNU):`, which comes last, is for g++ alone. COMPILE is the
# compiler's call; GNU says that it is g++.
cmake_minimum_required(VERSION 3.22...3.31)

if(CONTROL)
  execute_process(COMMAND ${COMPILE} -DMHLA_CONTROL "${CASE}"
                  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "The control, without the mistakes, does not compile:\n${output}")
  endif()
endif()

# Compiles with `flags`, for `sentences`, of which `first` comes first.
function(compile flags sentences first)
  if(NOT sentences)
    message(FATAL_ERROR "${CASE} has no line `// EXPECT: sentence`, ${flags}.")
  endif()
  execute_process(COMMAND ${COMPILE} ${flags} "${CASE}"
                  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
  if(status EQUAL 0)
    message(FATAL_ERROR "This compiles, and must not. ${flags}")
  endif()
  string(REGEX MATCHALL "error:[^\n]*" errors "${output}")
  list(GET errors 0 error)
  string(FIND "${error}" "${first}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "The first error is not\n  ${first}\nin\n${output}")
  endif()
  foreach(sentence IN LISTS sentences)
    string(FIND "${errors}" "${sentence}" position)
    if(position EQUAL -1)
      message(FATAL_ERROR "The compiler does not say, or not as often as it must,\n  ${sentence}\nbut\n${output}")
    endif()
    string(SUBSTRING "${errors}" 0 ${position} before)
    string(LENGTH "${sentence}" length)
    math(EXPR position "${position} + ${length}")
    string(SUBSTRING "${errors}" ${position} -1 after)
    set(errors "${before}${after}") # each is there for one mistake
  endforeach()
  list(LENGTH sentences most)
  math(EXPR most "${lines_each} * ${most}")
  string(REGEX MATCHALL "\n" lines "${output}")
  list(LENGTH lines count)
  if(GNU AND count GREATER most)
    message(FATAL_ERROR "The diagnostics have ${count} lines; the limit is ${most}:\n${output}")
  endif()
endfunction()

file(STRINGS "${CASE}" lines REGEX "^ *// (EXPECT|EXPECT [0-9]|FIRST|LINES|FLAGS|FLAGS .GNU.): ")
set(flags "")
set(sentences "")
set(first "")
set(lines_each 20)
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^ *// ([^:]*): .*$" "\\1" word "${line}")
  string(REGEX REPLACE "^ *// [^:]*: " "" text "${line}")
  if(word MATCHES "^EXPECT *([0-9]*)$")
    set(count ${CMAKE_MATCH_1} 1)
    list(GET count 0 count)
    foreach(mistake RANGE 1 ${count})
      list(APPEND sentences "${text}")
    endforeach()
  elseif(word STREQUAL "FIRST")
    set(first "${text}")
  elseif(word STREQUAL "LINES")
    set(lines_each ${text})
  elseif(word STREQUAL "FLAGS" OR GNU)
    if(flags)
      compile("${flags}" "${sentences}" "")
    endif()
    separate_arguments(flags UNIX_COMMAND "${text}")
    set(sentences "")
  else()
    break() # what is for g++ alone comes last
  endif()
endforeach()
compile("${flags}" "${sentences}" "${first}")
