# SPDX-License-Identifier: MIT
# cmake -P cmake/test.cmake: from a fresh Debian or Ubuntu to the summary of every test.
# Variables: see from_scratch.cmake.
include("${CMAKE_CURRENT_LIST_DIR}/from_scratch.cmake")

build_project(
  PACKAGES libeigen3-dev catch2 nlohmann-json3-dev
  OPTIONS -DMHLA_BUILD_TESTS=ON -DMHLA_BUILD_EXAMPLES=ON -DMHLA_BUILD_BENCH=OFF)
run("Some tests failed." "${CMAKE_CTEST_COMMAND}" --test-dir "${MHLA_BUILD_DIR}"
    --output-on-failure --parallel ${cores})
