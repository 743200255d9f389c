# SPDX-License-Identifier: MIT
# Runs mpi_death with a victim that dies at exchange 0, STEP, 2 * STEP, ... until it survives the whole call: every
# other rank must say within 5 s of its timeout, 1 s, that rank 1 is gone (on a busy machine, perhaps together with
# another that is late), and must have written nothing. The same if the victim throws while summaries travel, whose
# messages must leave its memory alone; and if it calls with another shape, all ranks must say so.
#   cmake -DMPIRUN=... -DPROGRAM=... -DSTEP=1 -P mpi_death.cmake
cmake_minimum_required(VERSION 3.22...3.31)
set(flags --enable-recovery) # of Open MPI 4: it leaves those that live alone
function(run output)
  execute_process(COMMAND "${MPIRUN}" ${flags} -n 3 "${PROGRAM}" ${ARGN} TIMEOUT 60
    OUTPUT_VARIABLE text ERROR_VARIABLE errors RESULT_VARIABLE status)
  message("${text}")
  if(text MATCHES "something was written")
    message(FATAL_ERROR "A rank that ended with an error has written results.")
  endif()
  set(${output} "${text}" PARENT_SCOPE)
endfunction()
function(require text rank words)
  if(NOT text MATCHES "rank ${rank}: after ([0-9]+) ms, nothing written: [^\n]*${words}")
    message(FATAL_ERROR "Rank ${rank} does not say: ${words}")
  endif()
  if(CMAKE_MATCH_1 GREATER 6000)
    message(FATAL_ERROR "Rank ${rank} has waited for ${CMAKE_MATCH_1} ms.")
  endif()
endfunction()

set(exchange 0)
while(TRUE)
  run(text dies ${exchange})
  if(text MATCHES "rank 1: finished")
    break()
  endif()
  require("${text}" 0 "for rank 1[, 0-9]*, which has ended")
  require("${text}" 2 "for rank 1[, 0-9]*, which has ended")
  math(EXPR exchange "${exchange} + ${STEP}")
endwhile()
if(exchange LESS 14) # 3 agreements, 2 * 4 + 1 exchanges of sums, 2 confirmations
  message(FATAL_ERROR "There were ${exchange} exchanges only.")
endif()
run(text throws 4) # its third piece of four
require("${text}" 0 "for rank 1[, 0-9]*, which has ended")
require("${text}" 1 "thrown and gone")
require("${text}" 2 "for rank 1[, 0-9]*, which has ended")
run(text disagrees)
foreach(rank 0 1 2)
  require("${text}" ${rank} "key_dim is 4 on rank 1 but 8 on rank 0")
endforeach()
