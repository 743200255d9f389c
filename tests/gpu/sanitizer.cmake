# SPDX-License-Identifier: MIT
# Runs the tests that a slow tool can watch under a tool of compute-sanitizer:
#   cmake -DTOOL=memcheck -DPROGRAM=mhla_gpu_tests -P sanitizer.cmake
# Says "Skipped: ..." where there is no GPU or the tool does not work on it.
execute_process(COMMAND "${PROGRAM}" --probe RESULT_VARIABLE status OUTPUT_VARIABLE output
  ERROR_VARIABLE output)
if(status EQUAL 77)
  message(STATUS "${output}")
  return()
endif()

find_program(sanitizer compute-sanitizer
  HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin compute-sanitizer)
if(NOT sanitizer)
  message(STATUS "Skipped: compute-sanitizer is not available: it was not found")
  return()
endif()

set(options --tool ${TOOL} --error-exitcode 99)
set(arguments small small_paths decoding)
if(TOOL STREQUAL "memcheck")
  list(APPEND options --padding 64)
elseif(TOOL MATCHES "^(race|sync)check$")
  # Only the fused kernels have threads that wait for each other and share memory.
  set(arguments small_paths)
elseif(TOOL STREQUAL "initcheck")
  # What is poisoned counts as written.
  list(APPEND arguments --leave-memory)
endif()
execute_process(COMMAND "${sanitizer}" ${options} "${PROGRAM}" ${arguments}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output
  ECHO_OUTPUT_VARIABLE ECHO_ERROR_VARIABLE) # as it comes: a timeout keeps what there was
if(status EQUAL 0)
  return()
elseif(output MATCHES "(Device not supported|Unable to find injection library)")
  message(STATUS "Skipped: compute-sanitizer is not available: ${CMAKE_MATCH_1}")
else()
  message(FATAL_ERROR "compute-sanitizer --tool ${TOOL} found errors, or the tests failed: ${status}")
endif()
