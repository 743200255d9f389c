# SPDX-License-Identifier: MIT
# Makes the package with Conan, in a cache of its own and of this machine's Eigen, so that nothing is
# downloaded; Conan then builds and runs the program in cmake/conan/test_package.
#   PROGRAM, FOLDER for all it writes, CXX
cmake_minimum_required(VERSION 3.22...3.31)
get_filename_component(recipe "${CMAKE_CURRENT_LIST_DIR}/../../cmake/conan" ABSOLUTE)

file(REMOVE_RECURSE "${FOLDER}")
set(ENV{CONAN_HOME} "${FOLDER}/home") # not the user's
execute_process(COMMAND "${PROGRAM}" --version OUTPUT_VARIABLE version)
if(NOT version MATCHES "Conan version ([2-9]|[1-9][0-9])")
  message(STATUS "Skipped: ${PROGRAM} is not Conan 2: ${version}")
  return()
endif()

set(ENV{CXX} "${CXX}")
execute_process(COMMAND "${PROGRAM}" profile detect COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${PROGRAM}" create "${recipe}" --no-remote -s compiler.cppstd=20
  -o "mhla/*:system_eigen=True" -c "tools.cmake.cmake_layout:test_folder=${FOLDER}/test"
  COMMAND_ERROR_IS_FATAL ANY)
