# SPDX-License-Identifier: MIT
# cmake -P cmake/test.cmake: from a fresh Debian or Ubuntu to the summary of every test.
# Variables: see from_scratch.cmake.
include("${CMAKE_CURRENT_LIST_DIR}/from_scratch.cmake")

build_project(
  PACKAGES libeigen3-dev catch2 nlohmann-json3-dev
  OPTIONS -DMHLA_BUILD_TESTS=ON -DMHLA_BUILD_EXAMPLES=ON -DMHLA_BUILD_BENCH=OFF)
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
