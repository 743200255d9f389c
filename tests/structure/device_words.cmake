# SPDX-License-Identifier: MIT
# Reads the library and fails on words that only a CUDA compiler understands outside of the two
# headers that the tests have stand-ins for.   cmake -DINCLUDE_DIR=include -P device_words.cmake

# Who may say what: a header of include/mhla, and words.
set(allowed
  "cuda/chip/machine.cuh : asm __CUDA_ARCH__ __global__ __device__ __shared__ __syncthreads __syncwarp __shfl __launch_bounds__ blockIdx blockDim gridDim threadIdx cuda_runtime"
  "cuda/chip/launch.cuh  : __global__ __launch_bounds__ blockIdx blockDim gridDim threadIdx <<< cuda_runtime"
  "cuda/chip/device_memory.cuh : cuda_runtime"
  "cuda/workspace.cuh : cuda_runtime"
  "policy/feature_map.hpp : asm __CUDA_ARCH__" # an instruction that compilers do not find
  "core/config.hpp  : __host__ __device__")
set(words asm __CUDA_ARCH__ __global__ __device__ __host__ __shared__ __constant__ __syncthreads
  __syncwarp __shfl __launch_bounds__ blockIdx blockDim gridDim threadIdx <<< cuda_runtime)

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
foreach(rule IN LISTS allowed)
  string(REGEX MATCH "^([^ ]+) *: *(.*)$" ignored "${rule}")
  string(REPLACE " " ";" "words_of_${CMAKE_MATCH_1}" "${CMAKE_MATCH_2}")
endforeach()

foreach(header IN LISTS headers)
  foreach(word IN LISTS words)
    if(word STREQUAL "asm") # a whole word
      set(pattern "(^|[^A-Za-z0-9_])asm([^A-Za-z0-9_]|$)")
    else()
      set(pattern "${word}")
    endif()
    file(STRINGS "${INCLUDE_DIR}/mhla/${header}" lines REGEX "${pattern}" LIMIT_COUNT 1)
    if(lines AND NOT word IN_LIST "words_of_${header}")
      list(APPEND faults "${header} says ${word}")
    endif()
  endforeach()
endforeach()

report("Only a CUDA compiler understands" headers "headers, words of CUDA only where they belong")
