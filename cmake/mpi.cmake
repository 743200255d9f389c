# SPDX-License-Identifier: MIT
# Programs of ours that run as several processes, and their entries of ctest. Never exported.
set(MPI_CXX_SKIP_MPICXX ON) # no C++ bindings, which MPI has no more
find_package(MPI COMPONENTS CXX QUIET)

# For Open MPI 4 and 5; others ignore it. Root may run it, with more processes than cores, in a container
# that lets no process read another's memory. Its own leaks are none of ours, which threads show.
set(MHLA_MPI_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_btl_vader_single_copy_mechanism=none
  OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe ASAN_OPTIONS=detect_leaks=0)

# mhla_add_mpi_test(name processes command...)
# An entry of ctest that takes so many processes; without MPI (MPI_CXX_FOUND) it is skipped, and says so.
function(mhla_add_mpi_test name processes)
  if(MPI_CXX_FOUND)
    add_test(NAME ${name} COMMAND ${ARGN})
  else()
    add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" -E echo
      "Skipped: there is no MPI here (apt-get install libopenmpi-dev)")
  endif()
  get_filename_component(label "${name}" DIRECTORY)
  set_tests_properties(${name} PROPERTIES LABELS "${label}" TIMEOUT 600 PROCESSORS ${processes}
    ENVIRONMENT "${MHLA_MPI_ENVIRONMENT}" SKIP_REGULAR_EXPRESSION "^Skipped: ")
endfunction()

# mhla_add_mpirun_test(name processes COMMAND target [argument...])
# The same, of a target that mpirun starts.
function(mhla_add_mpirun_test name processes)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "COMMAND")
  list(POP_FRONT arg_COMMAND target)
  mhla_add_mpi_test(${name} ${processes} "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG} ${processes}
    $<TARGET_FILE:${target}> ${arg_COMMAND})
endfunction()
