# SPDX-License-Identifier: MIT
# cmake -P cmake/quickstart.cmake: from a fresh Debian or Ubuntu to the first run of quickstart.
# Variables: see from_scratch.cmake.
include("${CMAKE_CURRENT_LIST_DIR}/from_scratch.cmake")

build_project(
  PACKAGES libeigen3-dev
  OPTIONS -DMHLA_BUILD_TESTS=OFF -DMHLA_BUILD_EXAMPLES=ON -DMHLA_BUILD_BENCH=OFF
  TARGET quickstart)
run("quickstart failed." "${MHLA_BUILD_DIR}/examples/quickstart")
