# SPDX-License-Identifier: MIT
# Installs BUILD_DIR into an empty folder and moves that to PREFIX: a package must not remember where
# it was installed first.
file(REMOVE_RECURSE "${PREFIX}" "${PREFIX}-moved-away")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${PREFIX}-moved-away"
                COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${PREFIX}-moved-away" "${PREFIX}")
