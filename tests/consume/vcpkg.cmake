# SPDX-License-Identifier: MIT
# Installs vcpkg's port, and Eigen by way of it, into a folder of its own, and builds and runs project/ on
# that.   PROGRAM, FOLDER for all it writes, CXX, GENERATOR
cmake_minimum_required(VERSION 3.22...3.31)
get_filename_component(ports "${CMAKE_CURRENT_LIST_DIR}/../../cmake/vcpkg" ABSOLUTE)

file(MAKE_DIRECTORY "${FOLDER}") # vcpkg takes a vcpkg.json of the folder it is called in for its own
set(ENV{CXX} "${CXX}")
execute_process(COMMAND "${PROGRAM}" install mhla "--overlay-ports=${ports}"
  "--x-install-root=${FOLDER}/installed" WORKING_DIRECTORY "${FOLDER}" COMMAND_ERROR_IS_FATAL ANY)

file(GLOB installed "${FOLDER}/installed/*/share/mhla/mhla-config.cmake")
get_filename_component(prefix "${installed}/../../.." ABSOLUTE)
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/project" -B "${FOLDER}/build"
  -G "${GENERATOR}" -DROUTE=find_package "-DCMAKE_PREFIX_PATH=${prefix}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${FOLDER}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${FOLDER}/build/consumer" COMMAND_ERROR_IS_FATAL ANY)
