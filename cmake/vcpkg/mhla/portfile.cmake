# SPDX-License-Identifier: MIT
# vcpkg's port, of the sources around it:   vcpkg install mhla --overlay-ports=cmake/vcpkg
set(VCPKG_BUILD_TYPE release) # headers: there is no debug build of them
get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

vcpkg_cmake_configure(SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DMHLA_BUILD_TESTS=OFF -DMHLA_BUILD_EXAMPLES=OFF -DMHLA_BUILD_BENCH=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/mhla)
vcpkg_fixup_pkgconfig()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
