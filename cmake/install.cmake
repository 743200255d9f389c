# SPDX-License-Identifier: MIT
# Installs the headers, the CMake package and a pkg-config file. Everything is independent of the
# architecture and relocatable, hence share/ and not lib/.
include(CMakePackageConfigHelpers)

set(package_dir share/cmake/mhla)
install(DIRECTORY include/mhla DESTINATION include PATTERN "*.md" EXCLUDE)
install(TARGETS mhla EXPORT mhla-targets)
install(EXPORT mhla-targets NAMESPACE mhla:: DESTINATION ${package_dir})

configure_package_config_file(cmake/mhla-config.cmake.in "${PROJECT_BINARY_DIR}/mhla-config.cmake"
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/mhla-config-version.cmake"
  COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(
  FILES
    "${PROJECT_BINARY_DIR}/mhla-config.cmake"
    "${PROJECT_BINARY_DIR}/mhla-config-version.cmake"
    cmake/mhla-cuda.cmake
    cmake/mhla-eigen.cmake
    cmake/mhla-kernels.cmake
  DESTINATION ${package_dir})

# The build folder is a package, too: mhla_DIR may name it.
export(EXPORT mhla-targets NAMESPACE mhla:: FILE "${PROJECT_BINARY_DIR}/mhla-targets.cmake")
foreach(part IN ITEMS cuda eigen kernels)
  configure_file(cmake/mhla-${part}.cmake "${PROJECT_BINARY_DIR}/mhla-${part}.cmake" COPYONLY)
endforeach()

# eigen3.pc says -I, with which Eigen's headers warn under -Wconversion and the like. Compilers ignore that
# for a folder that -isystem names too, so here it is again; where another Eigen is in use, it does nothing.
# (Never for a folder that holds other headers: with -isystem /usr/include the standard library breaks.)
get_target_property(eigen_include Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
set(eigen_is_system "")
if(eigen_include MATCHES "^/[^;$ ]*/eigen3/?$")
  set(eigen_is_system " -isystem ${eigen_include}")
endif()
configure_file(cmake/mhla.pc.in "${PROJECT_BINARY_DIR}/mhla.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/mhla.pc" DESTINATION share/pkgconfig)
