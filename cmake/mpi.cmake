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

# mhla_add_mpirun_test(name processes [FLAGS flag...] COMMAND target [argument...])
# ctest runs a target as so many processes, by mpirun with these flags; MPI_CXX_FOUND says whether there
# is MPI for the target to be built with. Without MPI the test is skipped, and says so.
function(mhla_add_mpirun_test name processes)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "FLAGS;COMMAND")
  if(MPI_CXX_FOUND)
    list(POP_FRONT arg_COMMAND target)
    add_test(NAME ${name} COMMAND "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG} ${processes}
      ${arg_FLAGS} $<TARGET_FILE:${target}> ${arg_COMMAND})
  else()
    add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" -E echo
      "Skipped: there is no MPI here (apt-get install libopenmpi-dev)")
  endif()
  get_filename_component(label "${name}" DIRECTORY)
  set_tests_properties(${name} PROPERTIES LABELS "${label}" TIMEOUT 600 PROCESSORS ${processes}
    ENVIRONMENT "${MHLA_MPI_ENVIRONMENT}" SKIP_REGULAR_EXPRESSION "^Skipped: ")
endfunction()
