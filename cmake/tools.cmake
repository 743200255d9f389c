# SPDX-License-Identifier: MIT
# Finds what only the project's own tests and benchmarks need. As in mhla-eigen.cmake, each function
# sets `problem` to one sentence, or to nothing.

function(mhla_find_catch2 problem)
  set(${problem} "" PARENT_SCOPE)
  find_package(Catch2 CONFIG QUIET)
  if(NOT Catch2_FOUND OR Catch2_VERSION VERSION_LESS 2.13 OR Catch2_VERSION VERSION_GREATER_EQUAL 4)
    set(${problem} "The tests need Catch2 2.13 or 3, and it was not found: install it (Debian and \
Ubuntu: catch2) or configure with -DMHLA_BUILD_TESTS=OFF." PARENT_SCOPE)
  endif()
endfunction()

function(mhla_find_benchmark problem)
  set(${problem} "" PARENT_SCOPE)
  find_package(benchmark CONFIG QUIET)
  if(NOT benchmark_FOUND OR benchmark_VERSION VERSION_LESS 1.6)
    set(${problem} "The benchmarks need Google Benchmark 1.6 or newer, and it was not found: install it \
(Debian and Ubuntu: libbenchmark-dev) or configure with -DMHLA_BUILD_BENCH=OFF." PARENT_SCOPE)
  endif()
endfunction()

function(mhla_find_json problem)
  set(${problem} "" PARENT_SCOPE)
  find_package(nlohmann_json CONFIG QUIET)
  if(NOT nlohmann_json_FOUND OR nlohmann_json_VERSION VERSION_LESS 3.7)
    set(${problem} "mhla_run_released is not built: it needs nlohmann_json 3.7 or newer (Debian and \
Ubuntu: nlohmann-json3-dev), which was not found." PARENT_SCOPE)
  endif()
endfunction()
