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

configure_file(cmake/mhla.pc.in "${PROJECT_BINARY_DIR}/mhla.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/mhla.pc" DESTINATION share/pkgconfig)
