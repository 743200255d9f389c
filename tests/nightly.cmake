# SPDX-License-Identifier: MIT
# A workflow preset knows one build folder only, so the nightly one runs the others as tests.
foreach(preset IN ITEMS nightly-clang nightly-asan nightly-asan-gcc)
  add_test(NAME nightly/${preset} COMMAND "${CMAKE_COMMAND}" --workflow --preset ${preset}
           WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(nightly/${preset} PROPERTIES LABELS nightly RUN_SERIAL ON TIMEOUT 14400)
endforeach()

# Faults planted one by one, each of which a test must notice.
add_test(NAME nightly/planted_faults COMMAND "${CMAKE_COMMAND}"
         "-DMHLA_BUILD_DIR=${PROJECT_BINARY_DIR}/mutants" -P "${CMAKE_CURRENT_SOURCE_DIR}/mutants/run.cmake")
set_tests_properties(nightly/planted_faults PROPERTIES LABELS nightly TIMEOUT 7200 RUN_SERIAL ON)
