# SPDX-License-Identifier: MIT
# Builds library/, installs it, and runs user/ on what was installed. FOLDER is for the builds; what both
# are configured with (generator, compiler) is in OPTIONS.
cmake_minimum_required(VERSION 3.22...3.31)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE "${FOLDER}/installed")
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/library" -B "${FOLDER}/library" ${OPTIONS} "-DMHLA=${MHLA}")
run("${CMAKE_COMMAND}" --build "${FOLDER}/library")
run("${CMAKE_COMMAND}" --install "${FOLDER}/library" --prefix "${FOLDER}/installed")
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/user" -B "${FOLDER}/user" ${OPTIONS}
    "-Dlayers_DIR=${FOLDER}/installed/share/cmake/layers"
    "-Dmhla_DIR=${FOLDER}/installed/share/cmake/mhla")
run("${CMAKE_COMMAND}" --build "${FOLDER}/user")
run("${FOLDER}/user/user")
