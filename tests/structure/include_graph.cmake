# SPDX-License-Identifier: MIT
# Reads the #include lines of the library and fails on an upward edge, on a cycle, on Eigen where it
# does not belong, and on a line that another one makes idle.   cmake -DINCLUDE_DIR=include -P tests/structure/include_graph.cmake

# What each room may include besides itself. A room is a folder of include/mhla or a header in it.
set(rooms
  "version.hpp       : "
  "core              : version.hpp"
  "policy            : core"
  "reference         : core policy"
  "testing           : core policy"
  "stages            : core policy"
  "cpu               : core policy stages"
  "cuda              : core policy stages"
  "eigen             : core policy cpu cuda mixing_matrix.hpp structured_mixing.hpp fork_join.hpp"
  "mixing_matrix.hpp : core policy"
  "mixing_fit        : core policy mixing_matrix.hpp"
  "structured_mixing.hpp : core policy mixing_fit mixing_matrix.hpp"
  "fork_join.hpp     : core"
  "executors         : core"
  "diagnostics       : core policy reference eigen"
  "attention.hpp     : core policy cpu eigen"
  "decoding.hpp      : core policy cpu"
  "packed.hpp        : core policy cpu"
  "stages.hpp        : core policy cpu stages"
  "distributed       : core policy cpu stages stages.hpp"
  "distributed.hpp   : distributed"
  "mpi.hpp           : core distributed"
  "cuda_distributed.hpp : core policy cuda distributed"
  "nccl.hpp          : core distributed"
  "views.hpp         : version.hpp core policy cpu mixing_matrix.hpp structured_mixing.hpp decoding.hpp packed.hpp stages.hpp"
  "mhla.hpp          : version.hpp eigen attention.hpp views.hpp"
  "cuda.hpp          : version.hpp core policy cuda eigen attention.hpp decoding.hpp packed.hpp")

# Floors within a room: what headers of a folder may include besides themselves and other rooms,
# folders or headers. Kernels know nothing of the paths that run them, nor of what these cost.
set(floors
  "cuda/chip  : cuda/device.hpp"
  "cuda/fused : cuda/chip cuda/device.hpp cuda/head_dims.hpp cuda/limits.hpp cuda/plan.hpp cuda/tables.hpp")

# Lists of headers for users, where every line says what there is; and what a header at the top may
# include again, since it says first, in few lines, which C++ is needed.
set(lists mhla.hpp views.hpp cuda.hpp distributed.hpp)
set(needed core/config.hpp)

include("${CMAKE_CURRENT_LIST_DIR}/common.cmake")

foreach(rule IN LISTS rooms floors)
  string(REGEX MATCH "^([^ ]+) *: *(.*)$" ignored "${rule}")
  string(REPLACE " " ";" "below_${CMAKE_MATCH_1}" "${CMAKE_MATCH_2}")
endforeach()

# Edges: targets_<header> is the list of our own headers that it includes.
foreach(header IN LISTS headers)
  string(REGEX REPLACE "/.*" "" room "${header}")
  if(NOT DEFINED "below_${room}")
    list(APPEND faults "${header}: there is no rule for the room ${room}")
    continue()
  endif()
  set("targets_${header}" "")
  file(STRINGS "${INCLUDE_DIR}/mhla/${header}" lines REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"]")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "[<\"]([^>\"]+)" ignored "${line}")
    set(target "${CMAKE_MATCH_1}")
    if(target MATCHES "^mhla/(.*)$")
      set(target "${CMAKE_MATCH_1}")
      list(APPEND "targets_${header}" "${target}")
      string(REGEX REPLACE "/.*" "" target_room "${target}")
      if(NOT target IN_LIST headers)
        list(APPEND faults "${header} includes mhla/${target}, which does not exist")
      elseif(NOT target_room STREQUAL room AND NOT target_room IN_LIST "below_${room}")
        list(APPEND faults "${header} includes mhla/${target}: upward, ${room} may not use ${target_room}")
      endif()
      get_filename_component(floor "${header}" DIRECTORY)
      get_filename_component(target_floor "${target}" DIRECTORY)
      if(floor MATCHES "/" AND DEFINED "below_${floor}" AND target_room STREQUAL room
         AND NOT target_floor STREQUAL floor AND NOT target IN_LIST "below_${floor}"
         AND NOT target_floor IN_LIST "below_${floor}")
        list(APPEND faults "${header} includes mhla/${target}: upward, ${floor} is below it")
      endif()
    elseif(target MATCHES "^(unsupported/)?Eigen/")
      if(NOT header MATCHES "^(eigen|diagnostics)/")
        list(APPEND faults "${header} includes ${target}: Eigen does not belong there")
      endif()
    elseif(line MATCHES "\"")
      list(APPEND faults "${header} includes \"${target}\": write <mhla/...>")
    endif()
  endforeach()
endforeach()

# Cycles: take away, again and again, every header that includes none of those left or that none of
# those left includes. What cannot be taken away is the cycles and the ways between them.
set(left "${headers}")
set(progress TRUE)
while(progress)
  set(progress FALSE)
  set(included "")
  foreach(header IN LISTS left)
    list(APPEND included ${targets_${header}})
  endforeach()
  foreach(header IN LISTS left)
    set(includes_one FALSE)
    foreach(target IN LISTS "targets_${header}")
      if(target IN_LIST left)
        set(includes_one TRUE)
      endif()
    endforeach()
    if(NOT includes_one OR NOT header IN_LIST included)
      list(REMOVE_ITEM left "${header}")
      set(progress TRUE)
    endif()
  endforeach()
endwhile()
if(left)
  list(JOIN left ", " names)
  list(APPEND faults "these headers include each other in a cycle: ${names}")
endif()

# Idle lines: `brought_<header>` is all that a header brings by lines that no #if encloses. Without
# such a line the same is included, so that no test would notice.
function(find_brought header)
  get_property(is_known GLOBAL PROPERTY "brought_${header}" SET)
  if(is_known OR NOT EXISTS "${INCLUDE_DIR}/mhla/${header}")
    return()
  endif()
  file(STRINGS "${INCLUDE_DIR}/mhla/${header}" lines REGEX "^[ \t]*#[ \t]*(if|endif|include)")
  set(depth 0)
  set(direct "")
  set(indirect "")
  foreach(line IN LISTS lines)
    if(line MATCHES "#[ \t]*if")
      math(EXPR depth "${depth} + 1")
    elseif(line MATCHES "#[ \t]*endif")
      math(EXPR depth "${depth} - 1")
    elseif(depth EQUAL 0 AND line MATCHES "<(mhla/)?(.+)>")
      set(target "${CMAKE_MATCH_2}")
      list(APPEND direct "${target}")
      if(CMAKE_MATCH_1)
        find_brought("${target}")
        get_property(brought GLOBAL PROPERTY "brought_${target}")
        list(APPEND indirect ${brought})
      endif()
    endif()
  endforeach()
  list(REMOVE_DUPLICATES indirect)
  set_property(GLOBAL PROPERTY "brought_${header}" ${direct} ${indirect})
  foreach(target IN LISTS direct)
    if(target IN_LIST indirect AND NOT header IN_LIST lists
       AND NOT (target IN_LIST needed AND NOT header MATCHES "/"))
      set_property(GLOBAL APPEND PROPERTY idle "${header} includes ${target}: idle, another of its includes does")
    endif()
  endforeach()
endfunction()
if(NOT faults)
  foreach(header IN LISTS headers)
    find_brought("${header}")
  endforeach()
  get_property(faults GLOBAL PROPERTY idle)
endif()

report("The include graph is broken" headers "headers, no upward edge, no cycle, no idle line")
