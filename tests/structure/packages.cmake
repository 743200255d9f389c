# SPDX-License-Identifier: MIT
# The version of version.hpp is that of vcpkg's port, the one that Conan's recipe reads, and the one that
# cmake/README.md asks for.   cmake -DSOURCE_DIR=. -P tests/structure/packages.cmake
cmake_minimum_required(VERSION 3.22...3.31)
set(faults "")
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
if(NOT asked)
  list(APPEND faults "cmake/README.md does not show find_package(mhla ${major_minor}")
endif()
foreach(request IN LISTS asked)
  string(REGEX MATCH "[0-9.]+" request "${request}")
  if(NOT request STREQUAL major_minor)
    list(APPEND faults "cmake/README.md asks for ${request}")
  endif()
endforeach()

if(faults)
  list(JOIN faults "\n  " text)
  message(FATAL_ERROR "The library is mhla ${version}, but\n  ${text}\n")
endif()
message(STATUS "mhla ${version} everywhere")
