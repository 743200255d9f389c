# SPDX-License-Identifier: MIT
# The kernels of a program's variants, for the build tree and for the installed package alike. Nothing
# here runs unless it is called: the library itself needs no CUDA.

# Enables CUDA where this machine can compile it, and finds cuBLAS. Sets `problem` to one sentence, or to
# nothing when the functions below can be called. A macro, because languages are enabled outside of
# functions; call it where every target that uses CUDA can see it.
macro(mhla_find_cuda problem)
  set(${problem} "")
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(mhla_nvcc nvcc HINTS ENV CUDA_PATH PATH_SUFFIXES bin PATHS /usr/local/cuda/bin)
    mark_as_advanced(mhla_nvcc)
    if(mhla_nvcc)
      set(ENV{CUDACXX} "${mhla_nvcc}")
    endif()
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT CMAKE_C_COMPILER_LOADED AND NOT CMAKE_CXX_COMPILER_LOADED)
      enable_language(CXX) # FindCUDAToolkit looks for threads, which needs it
    endif()
    find_package(CUDAToolkit QUIET)
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    set(${problem} "CUDA cannot be compiled here: install nvcc 12 or newer, or name it in \
CMAKE_CUDA_COMPILER.")
  elseif(NOT TARGET CUDA::cublas)
    set(${problem} "cuBLAS was not found beside ${CMAKE_CUDA_COMPILER}: install it, or name its folder in \
CUDAToolkit_ROOT.")
  endif()
endmacro()

# CMake 3.25 does not know that nvcc 13 knows C++20. It names no standard after ours where the target asks for what
# CMake takes for the compiler's default.
function(mhla_compile_cuda_as_cpp20 target)
  if("cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
    target_compile_features("${target}" PRIVATE cuda_std_20)
  else()
    set_target_properties("${target}" PROPERTIES CUDA_STANDARD "${CMAKE_CUDA_STANDARD_COMPUTED_DEFAULT}"
      CUDA_EXTENSIONS "${CMAKE_CUDA_EXTENSIONS_COMPUTED_DEFAULT}")
    target_compile_options("${target}" PRIVATE $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>)
  endif()
endfunction()

# mhla_use_cuda(my_program): for a target with .cu files of its own that include <mhla/cuda/instantiate.cuh>.
# They are compiled as C++20, and the target links mhla::mhla and cuBLAS.
function(mhla_use_cuda target)
  if(NOT TARGET "${target}" OR ARGN)
    message(FATAL_ERROR "mhla_use_cuda(target) was called with: ${ARGV}")
  endif()
  mhla_compile_cuda_as_cpp20("${target}")
  target_link_libraries("${target}" PRIVATE mhla::mhla CUDA::cublas)
endfunction()

# The line of a .cu that compiles Variant:scalar[:key_dim,value_dim]...
function(mhla_cuda_instantiation entry line)
  if(NOT entry MATCHES
     "^([A-Za-z_0-9:]*[A-Za-z_0-9]):([A-Za-z_][A-Za-z_0-9]*(::[A-Za-z_][A-Za-z_0-9]*)*)((:[0-9]+,[0-9]+)*)$")
    message(FATAL_ERROR "mhla_add_cuda_variants: \"${entry}\" is not Variant:scalar, two names with a colon "
                        "between them, nor Variant:scalar:128,128:64,64 with head dimensions (of keys, of "
                        "values) for fused kernels; a type with arguments needs a name, by `using`.")
  endif()
  set(arguments "${CMAKE_MATCH_1}, ${CMAKE_MATCH_2}")
  string(REGEX REPLACE ":([0-9]+),([0-9]+)" ", mhla::HeadDims<\\1, \\2>" dims "${CMAKE_MATCH_4}")
  set(${line} "MHLA_INSTANTIATE_CUDA(${arguments}${dims});" PARENT_SCOPE)
endfunction()

# mhla_add_cuda_variants(my_program HEADER my_variants.hpp
#   INSTANTIATE Vision:float Vision:mhla::BFloat16:64,64:72,72 Language:mhla::Half)
#
# Compiles the kernels of variants for scalars, and links them and cuBLAS to the target. After a scalar of
# 16 bits stand the head dimensions, of keys and of values, that get fused kernels; others run on cuBLAS.
# HEADER names the variants (using Vision = mhla::Attention<...>;) and includes <mhla/policy/variant.hpp>, or
# <mhla/policy/batch_layout.hpp> for packed and padded batches, rather than Eigen. The architectures are
# those of CMAKE_CUDA_ARCHITECTURES. Options of the target are not handed on to nvcc.
function(mhla_add_cuda_variants target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "HEADER" "INSTANTIATE")
  if(NOT TARGET "${target}" OR NOT arg_HEADER OR NOT arg_INSTANTIATE OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "mhla_add_cuda_variants(target HEADER variants.hpp INSTANTIATE Variant:scalar...) "
                        "was called with: ${ARGV}")
  endif()
  get_filename_component(header "${arg_HEADER}" ABSOLUTE)
  set(source "// Written by mhla_add_cuda_variants.\n#include <mhla/cuda/instantiate.cuh>\n\n#include \"${header}\"\n\n")
  foreach(entry IN LISTS arg_INSTANTIATE)
    mhla_cuda_instantiation("${entry}" line)
    string(APPEND source "${line}\n")
  endforeach()

  # A target may be given variants more than once.
  get_target_property(number "${target}" MHLA_CUDA_VARIANTS)
  if(NOT number)
    set(number 0)
  endif()
  math(EXPR number "${number} + 1")
  set_target_properties("${target}" PROPERTIES MHLA_CUDA_VARIANTS ${number})
  set(library "${target}_cuda_variants_${number}")
  set(file "${CMAKE_CURRENT_BINARY_DIR}/${library}.cu")
  file(CONFIGURE OUTPUT "${file}" CONTENT "${source}" @ONLY)

  # Compiled apart, because nvcc does not know the options of a C++ compiler. Its objects are the target's own:
  # a target that links another library can be exported only together with that.
  add_library(${library} OBJECT EXCLUDE_FROM_ALL "${file}")
  set_target_properties(${library} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  mhla_compile_cuda_as_cpp20(${library})
  get_target_property(include mhla::mhla INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(${library} PRIVATE "${include}")
  target_sources("${target}" PRIVATE $<TARGET_OBJECTS:${library}>)
  target_link_libraries("${target}" PRIVATE CUDA::cublas)
endfunction()
