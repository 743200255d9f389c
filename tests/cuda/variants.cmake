# SPDX-License-Identifier: MIT
# What mhla_add_cuda_variants makes of its entries.
#   cmake -DSOURCE_DIR=. [-DENTRY=...] -P tests/cuda/variants.cmake
cmake_minimum_required(VERSION 3.22...3.31)
include("${SOURCE_DIR}/cmake/mhla-cuda.cmake")

if(ENTRY)
  mhla_cuda_instantiation("${ENTRY}" line)
  message(FATAL_ERROR "generated ${line}")
endif()

function(check entry arguments)
  mhla_cuda_instantiation("${entry}" line)
  if(NOT line STREQUAL "MHLA_INSTANTIATE_CUDA(${arguments});")
    message(FATAL_ERROR "${entry}: expected MHLA_INSTANTIATE_CUDA(${arguments});, generated ${line}")
  endif()
endfunction()

check("Vision:float" "Vision, float")
check("program::Vision:mhla::BFloat16" "program::Vision, mhla::BFloat16")
check("::Vision:mhla::Half:72,72" "::Vision, mhla::Half, mhla::HeadDims<72, 72>")
check("a::Vision:mhla::BFloat16:128,256:64,64"
      "a::Vision, mhla::BFloat16, mhla::HeadDims<128, 256>, mhla::HeadDims<64, 64>")
