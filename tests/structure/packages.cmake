# SPDX-License-Identifier: MIT
# The version of version.hpp is that of vcpkg's port, the one that Conan's recipe reads, and the one that
# cmake/README.md asks for.   cmake -DSOURCE_DIR=. -P tests/structure/packages.cmake
include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")
set(version "")
foreach(part IN ITEMS MAJOR MINOR PATCH)
  file(STRINGS "${SOURCE_DIR}/include/mhla/version.hpp" line REGEX "^#define MHLA_VERSION_${part} ")
  string(REGEX MATCH "[0-9]+$" number "${line}")
  list(APPEND version ${number})
endforeach()
list(JOIN version "." version)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" major_minor "${version}")

file(READ "${SOURCE_DIR}/cmake/vcpkg/mhla/vcpkg.json" manifest)
string(JSON port_version GET "${manifest}" version) # what is no JSON is an error here
if(NOT port_version STREQUAL version)
  list(APPEND faults "vcpkg's port is ${port_version}")
endif()

file(READ "${SOURCE_DIR}/cmake/conan/conanfile.py" recipe)
if(NOT recipe MATCHES "\"version.hpp\"" OR recipe MATCHES "\n    version = ")
  list(APPEND faults "Conan's recipe does not read version.hpp")
endif()

file(READ "${SOURCE_DIR}/cmake/README.md" page)
string(REGEX MATCHALL "find_package\\(mhla [0-9.]+" asked "${page}")
foreach(request IN LISTS asked)
  string(REGEX MATCH "[0-9.]+" request "${request}")
  if(NOT request STREQUAL major_minor)
    list(APPEND faults "cmake/README.md asks for ${request}")
  endif()
endforeach()

report("The library is mhla ${version}, but" asked "requests of mhla ${version}, and all packages have it")
