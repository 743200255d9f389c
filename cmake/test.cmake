# SPDX-License-Identifier: MIT
# cmake -P cmake/test.cmake: from a fresh Debian or Ubuntu to the summary of every test.
# Variables: see from_scratch.cmake.
include("${CMAKE_CURRENT_LIST_DIR}/from_scratch.cmake")

# Where nothing says which compiler to take, clang compiles the tests, if it can: in half of g++'s time.
function(choose_compiler result)
  set(${result} "" PARENT_SCOPE)
  find_program(clang clang++ NO_CACHE)
  if(NOT clang OR DEFINED ENV{CXX} OR DEFINED ENV{CMAKE_TOOLCHAIN_FILE} OR EXISTS "${MHLA_BUILD_DIR}/CMakeCache.txt")
    return()
  endif()
  execute_process(COMMAND "${clang}" -dumpversion OUTPUT_VARIABLE version ERROR_QUIET)
  execute_process(COMMAND "${clang}" -std=c++20 -fsyntax-only -include vector -x c++ /dev/null
    RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
  if(status EQUAL 0 AND version VERSION_GREATER_EQUAL 14)
    message(STATUS "Compiling with ${clang} (another one: CXX=g++ cmake -P cmake/test.cmake)")
    set(${result} "-DCMAKE_CXX_COMPILER=${clang}" PARENT_SCOPE)
  endif()
endfunction()

choose_compiler(compiler)
build_project(
  PACKAGES libeigen3-dev catch2 nlohmann-json3-dev
  OPTIONS ${compiler} -DMHLA_BUILD_TESTS=ON -DMHLA_BUILD_EXAMPLES=ON -DMHLA_BUILD_BENCH=OFF)
message(STATUS "Testing, ${cores} tests at once")
run_and_read("${CMAKE_CTEST_COMMAND}" --test-dir "${MHLA_BUILD_DIR}" --output-on-failure --parallel ${cores})
if(NOT status EQUAL 0)
  message(SEND_ERROR "Some tests failed. To run one alone:\n"
    "  ctest --test-dir ${MHLA_BUILD_DIR} --output-on-failure -R NAME")
endif()
if(output MATCHES "tests passed, ([0-9]+) tests? failed out of ([0-9]+)")
  set(failed ${CMAKE_MATCH_1})
  set(all ${CMAKE_MATCH_2})
  string(REGEX MATCHALL "[(]Skipped[)]\n" skipped "${output}")
  list(LENGTH skipped skipped)
  math(EXPR passed "${all} - ${failed} - ${skipped}")
  message(STATUS "Tests: ${passed} passed, ${failed} failed, ${skipped} skipped")
endif()
