# SPDX-License-Identifier: MIT
# Installs BUILD_DIR into an empty folder and moves that to PREFIX: a package must not remember where
# it was installed first.
file(REMOVE_RECURSE "${PREFIX}" "${PREFIX}-moved-away")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${PREFIX}-moved-away"
                RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "cmake --install failed")
endif()
file(RENAME "${PREFIX}-moved-away" "${PREFIX}")
