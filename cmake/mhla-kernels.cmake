# SPDX-License-Identifier: MIT
# mhla::kernels, optional: what takes long to compile, compiled once for all targets that link it, and
# optimized and without sanitizers whatever the flags of the rest. It is built where something links it.
include_guard(GLOBAL)

set(mhla_kernels_source "${CMAKE_CURRENT_BINARY_DIR}/mhla_kernels.cpp")
file(CONFIGURE OUTPUT "${mhla_kernels_source}" CONTENT "#include <mhla/cpu/instantiate_kernels.hpp>\n")
add_library(mhla_kernels STATIC EXCLUDE_FROM_ALL "${mhla_kernels_source}")
add_library(mhla::kernels ALIAS mhla_kernels)
set_target_properties(mhla_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_link_libraries(mhla_kernels PUBLIC mhla::mhla)
target_compile_definitions(mhla_kernels INTERFACE MHLA_KERNELS_ELSEWHERE)
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  target_compile_options(mhla_kernels PRIVATE -O2 -fno-sanitize=all)
endif()
