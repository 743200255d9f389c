# SPDX-License-Identifier: MIT
# One compile-fail case. CASE is a source file with at least one line
#   // EXPECT: a sentence
# and with its mistake inside #ifndef MHLA_CONTROL ... #endif (an #else may show what is right).
# It must fail to compile, with each sentence in the compiler's output; and, to show that nothing but
# the mistake is wrong, it must compile with MHLA_CONTROL defined, which is tried if CONTROL is on.
# Where the mistake is in the flags, a line `// FLAGS: -std=c++17` has them; `// LINES: 20` says how
# long the output may be, and `// FIRST: sentence` what the first error is. COMPILE is the compiler's
# call.
cmake_minimum_required(VERSION 3.22...3.31)

file(STRINGS "${CASE}" sentences REGEX "^// EXPECT: ")
list(TRANSFORM sentences REPLACE "^// EXPECT: " "")
file(STRINGS "${CASE}" flags REGEX "^// FLAGS: ")
list(TRANSFORM flags REPLACE "^// FLAGS: " "")
file(STRINGS "${CASE}" most_lines REGEX "^// LINES: ")
if(NOT sentences)
  message(FATAL_ERROR "${CASE} has no line `// EXPECT: sentence`.")
endif()

if(CONTROL)
  execute_process(COMMAND ${COMPILE} -DMHLA_CONTROL "${CASE}"
                  OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "The control, without the mistake, does not compile:\n${output}")
  endif()
endif()

execute_process(COMMAND ${COMPILE} ${flags} "${CASE}"
                OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
if(status EQUAL 0)
  message(FATAL_ERROR "This compiles, and must not.")
endif()
foreach(sentence IN LISTS sentences)
  string(FIND "${output}" "${sentence}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "The compiler does not say\n  ${sentence}\nbut\n${output}")
  endif()
endforeach()
file(STRINGS "${CASE}" first REGEX "^// FIRST: ")
list(TRANSFORM first REPLACE "^// FIRST: " "")
string(REGEX MATCH "error:[^\n]*" error "${output}")
string(FIND "${error}" "${first}" position)
if(position EQUAL -1)
  message(FATAL_ERROR "The first error is not\n  ${first}\nin\n${output}")
endif()
if(most_lines MATCHES "([0-9]+)")
  set(most ${CMAKE_MATCH_1})
  string(REGEX MATCHALL "\n" lines "${output}")
  list(LENGTH lines count)
  if(count GREATER most)
    message(FATAL_ERROR "The diagnostic has ${count} lines; the limit is ${most}:\n${output}")
  endif()
endif()
