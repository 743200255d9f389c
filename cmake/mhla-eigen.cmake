# SPDX-License-Identifier: MIT
# Finds Eigen, 3.4.0 <= version < 6, for the build tree and for the installed package alike.
# The lookup names no version: Eigen 3.4.0 rejects the range 3.4...<6, and Eigen 5 rejects 3.4.

# Sets `problem` to one sentence, or to nothing when the target Eigen3::Eigen can be used. A target
# that the including project brought along comes first; its version is checked where it is known.
function(mhla_find_eigen problem)
  set(${problem} "" PARENT_SCOPE)
  if(NOT TARGET Eigen3::Eigen)
    find_package(Eigen3 CONFIG QUIET)
  endif()
  if(NOT TARGET Eigen3::Eigen)
    set(${problem} "mhla needs Eigen 3.4.0 or newer, and none was found: install it (Debian and \
Ubuntu: libeigen3-dev) or name its folder in CMAKE_PREFIX_PATH." PARENT_SCOPE)
  elseif(Eigen3_VERSION AND (Eigen3_VERSION VERSION_LESS 3.4.0 OR Eigen3_VERSION VERSION_GREATER_EQUAL 6))
    set(${problem} "mhla needs Eigen 3.4.0 or newer and older than 6, but found Eigen \
${Eigen3_VERSION} in ${Eigen3_DIR}." PARENT_SCOPE)
  endif()
endfunction()
