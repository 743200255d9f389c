# SPDX-License-Identifier: MIT
# mhla::kernels, optional: what takes long to compile, compiled once for all targets that link it, and
# optimized, without sanitizers and without warnings whatever the flags of the rest. It is built where something
# links it. For the build tree and for the installed package alike.
#
# mhla::kernels is imported, though it is built here: a target that links it can then be exported, and names
# mhla::kernels, which find_package(mhla) makes again in the projects that use that target.

# Compiles the kernels where C++ is enabled: find_package(mhla) must do in projects without it, too.
function(mhla_add_kernels)
  if(TARGET mhla_kernels OR NOT CMAKE_CXX_COMPILER_LOADED)
    return()
  endif()
  set(source "${CMAKE_CURRENT_BINARY_DIR}/mhla_kernels.cpp")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include <mhla/cpu/instantiate_kernels.hpp>\n")
  add_library(mhla_kernels STATIC EXCLUDE_FROM_ALL "${source}")
  set_target_properties(mhla_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(mhla_kernels PUBLIC mhla::mhla)
  target_compile_definitions(mhla_kernels INTERFACE MHLA_KERNELS_ELSEWHERE)
  if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    target_compile_options(mhla_kernels PRIVATE -O2 -fno-sanitize=all -w)
  endif()
endfunction()

mhla_add_kernels()
if(NOT TARGET mhla_kernels) # C++ may be enabled further down
  cmake_language(DEFER CALL mhla_add_kernels)
endif()
if(NOT TARGET mhla::kernels)
  add_library(mhla::kernels INTERFACE IMPORTED GLOBAL)
  set_target_properties(mhla::kernels PROPERTIES
    IMPORTED_NO_SYSTEM ON # -I for our own tests, whose warnings count
    INTERFACE_LINK_LIBRARIES
      "$<IF:$<TARGET_EXISTS:mhla_kernels>,mhla_kernels,mhla::kernels_need_CXX_enabled_before_mhla_is_found>")
endif()
