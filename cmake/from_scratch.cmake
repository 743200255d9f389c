# SPDX-License-Identifier: MIT
# From a fresh machine to a built tree, for the scripts quickstart.cmake and test.cmake.
# Both are configured by variables (cmake -DNAME=VALUE -P script):
#   MHLA_INSTALL_PACKAGES    OFF forbids installing anything; also an environment variable
#   MHLA_BUILD_DIR           build folder, default build/ in the project; also an environment variable
#   MHLA_WARNINGS_AS_ERRORS, MHLA_TEST_PRODUCT, MHLA_TEST_GATE    handed on to the project
# CMake's own environment variables (CXX, CMAKE_BUILD_TYPE, CMAKE_PREFIX_PATH, ...) work as ever.
cmake_minimum_required(VERSION 3.22...3.31)
include(ProcessorCount)

get_filename_component(source_dir "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
foreach(name IN ITEMS MHLA_INSTALL_PACKAGES MHLA_BUILD_DIR)
  if(NOT DEFINED ${name} AND DEFINED ENV{${name}})
    set(${name} "$ENV{${name}}")
  endif()
endforeach()
if(NOT DEFINED MHLA_INSTALL_PACKAGES)
  set(MHLA_INSTALL_PACKAGES ON)
endif()
if(NOT MHLA_BUILD_DIR)
  set(MHLA_BUILD_DIR "${source_dir}/build")
endif()
get_filename_component(MHLA_BUILD_DIR "${MHLA_BUILD_DIR}" ABSOLUTE)
set(handed_on "")
foreach(name IN ITEMS MHLA_WARNINGS_AS_ERRORS MHLA_TEST_PRODUCT MHLA_TEST_GATE)
  if(DEFINED ${name})
    list(APPEND handed_on "-D${name}=${${name}}")
  endif()
endforeach()
ProcessorCount(cores)
if(cores EQUAL 0)
  set(cores 1)
endif()

# Runs a command whose output the user sees, and stops with `sentence` when it fails.
function(run sentence)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${source_dir}" RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${sentence}")
  endif()
endfunction()

# Runs a command whose output the user sees line by line, on a terminal or not; sets `status` and `output`.
macro(run_and_read)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY "${source_dir}" RESULT_VARIABLE status
    OUTPUT_VARIABLE output ERROR_VARIABLE output ECHO_OUTPUT_VARIABLE)
endmacro()

# Stops after a failed build: names the target, from what ninja or make says, and quotes the first error.
function(stop_build output)
  string(REGEX MATCH "(FAILED: |[*][*][*] [[])[^\n]*" failed "${output}")
  string(REGEX MATCH "[^\n]*([Ee]rror[: ]|undefined reference)[^\n]*" error "${output}")
  set(target "all")
  if(failed MATCHES "CMakeFiles/([^/]+)[.]dir/")
    set(target "${CMAKE_MATCH_1}")
  elseif(failed MATCHES "^FAILED: ([[]code=[0-9]+[]] )?([^ ]+)") # linking, or a command of the project's own
    set(target "${CMAKE_MATCH_2}")
  endif()
  message(FATAL_ERROR "The build failed at target ${target}:\n  ${error}\n"
    "To see this failure alone, and to compile with less memory:\n"
    "  cmake --build ${MHLA_BUILD_DIR} --parallel 1 --target ${target}\n"
    "Once it is mended, run the script again: it keeps what is built.")
endfunction()

# The generator to configure with, or nothing when the machine has neither ninja nor make.
function(find_generator result)
  find_program(ninja NAMES ninja ninja-build NO_CACHE)
  find_program(make NAMES make gmake NO_CACHE)
  if(ninja)
    set(${result} "Ninja" PARENT_SCOPE)
  elseif(make)
    set(${result} "Unix Makefiles" PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

# Sets `missing` to those of the packages ARGN that CMake does not find here.
function(find_missing missing generator)
  set(folder "${MHLA_BUILD_DIR}/probe")
  file(REMOVE_RECURSE "${folder}")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${source_dir}/cmake/probe" -B "${folder}" -G "${generator}"
            "-DNEEDED=${ARGN}"
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message("${output}")
    message(FATAL_ERROR "CMake cannot compile C++ here: install g++ 12 or clang 14, or newer.")
  endif()
  file(READ "${folder}/missing.txt" found)
  set(${missing} "${found}" PARENT_SCOPE)
endfunction()

# Installs Debian packages without asking anything: directly as root, else through sudo.
function(install_packages)
  list(JOIN ARGN " " names)
  if(NOT MHLA_INSTALL_PACKAGES)
    message(FATAL_ERROR "Missing here: ${names} (names of Debian and Ubuntu packages); nothing was "
                        "installed because MHLA_INSTALL_PACKAGES is off.")
  endif()
  find_program(apt_get apt-get NO_CACHE)
  if(NOT apt_get)
    message(FATAL_ERROR "Missing here: ${names} (names of Debian and Ubuntu packages); please install "
                        "them by this system's own means, as there is no apt-get.")
  endif()
  execute_process(COMMAND id -u OUTPUT_VARIABLE user OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(as_root "")
  if(NOT user EQUAL 0)
    find_program(sudo sudo NO_CACHE)
    set(as_root sudo -n)
    set(status 1)
    if(sudo)
      execute_process(COMMAND sudo -n true RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
      if(NOT status EQUAL 0) # it wants a password: ask where somebody can answer
        execute_process(COMMAND test -t 0 RESULT_VARIABLE status)
        set(as_root sudo)
      endif()
    endif()
    if(NOT status EQUAL 0)
      message(FATAL_ERROR "Missing here: ${names}; please run `apt-get install ${names}` as root, as "
                          "sudo is not available here without a password.")
    endif()
  endif()
  message(STATUS "Installing with apt-get: ${names}")
  set(apt_get ${as_root} env DEBIAN_FRONTEND=noninteractive apt-get -qq
      -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0)
  get_property(updated GLOBAL PROPERTY package_lists_updated)
  if(NOT updated)
    execute_process(COMMAND ${apt_get} update) # a mirror that fails need not matter: install tells
    set_property(GLOBAL PROPERTY package_lists_updated TRUE)
  endif()
  run("apt-get could not install ${names}." ${apt_get} install -y --no-install-recommends ${ARGN})
endfunction()

# Installs what is missing of the build tool and the packages ARGN; sets `generator`.
function(prepare_machine result)
  find_generator(generator)
  if(NOT generator)
    install_packages(ninja-build)
    find_generator(generator)
  endif()
  find_missing(missing "${generator}" ${ARGN})
  if(missing)
    install_packages(${missing})
    find_missing(missing "${generator}" ${ARGN})
    if(missing)
      list(JOIN missing " " names)
      message(FATAL_ERROR "apt-get installed ${names}, but CMake still does not find a version that "
                          "will do.")
    endif()
  endif()
  set(${result} "${generator}" PARENT_SCOPE)
endfunction()

# Where nothing says which compiler to take, clang is taken, if it can compile: in half of g++'s time.
function(choose_compiler result)
  set(${result} "" PARENT_SCOPE)
  find_program(clang clang++ NO_CACHE)
  if(NOT clang OR DEFINED ENV{CXX} OR DEFINED ENV{CMAKE_TOOLCHAIN_FILE} OR EXISTS "${MHLA_BUILD_DIR}/CMakeCache.txt")
    return()
  endif()
  execute_process(COMMAND "${clang}" -dumpversion OUTPUT_VARIABLE version ERROR_QUIET)
  execute_process(COMMAND "${clang}" -std=c++20 -fsyntax-only -include vector -x c++ /dev/null
    RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
  if(status EQUAL 0 AND version VERSION_GREATER_EQUAL 14)
    message(STATUS "Compiling with ${clang} (for another compiler, set CXX)")
    set(${result} "-DCMAKE_CXX_COMPILER=${clang}" PARENT_SCOPE)
  endif()
endfunction()

# build_project(PACKAGES p... OPTIONS o... [TARGET t]): prepares the machine, configures, builds.
function(build_project)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "TARGET" "PACKAGES;OPTIONS")
  prepare_machine(generator ${arg_PACKAGES})
  set(choose_generator -G "${generator}")
  if(EXISTS "${MHLA_BUILD_DIR}/CMakeCache.txt")
    set(choose_generator "") # a build folder keeps the generator that it began with
  endif()
  choose_compiler(compiler)
  run("The project could not be configured." "${CMAKE_COMMAND}" -S "${source_dir}"
      -B "${MHLA_BUILD_DIR}" ${choose_generator} ${compiler} ${handed_on} ${arg_OPTIONS})
  set(target "")
  if(arg_TARGET)
    set(target --target ${arg_TARGET})
  endif()
  message(STATUS "Building in ${MHLA_BUILD_DIR}, ${cores} commands at once")
  run_and_read("${CMAKE_COMMAND}" --build "${MHLA_BUILD_DIR}" --parallel ${cores} ${target})
  if(NOT status EQUAL 0)
    stop_build("${output}")
  endif()
endfunction()
