# SPDX-License-Identifier: MIT
# A workflow preset knows one build folder only, so the nightly one runs the others as tests.
# (nightly-tsan does without eigen/allocations: the hooks of that sanitizer see no aligned allocation.)
foreach(preset IN ITEMS nightly-clang nightly-asan nightly-asan-gcc nightly-tsan nightly-neon
    nightly-riscv64 nightly-ppc64le nightly-windows)
  add_test(NAME nightly/${preset} COMMAND "${CMAKE_COMMAND}" --workflow --preset ${preset}
           WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(nightly/${preset} PROPERTIES LABELS nightly RUN_SERIAL ON TIMEOUT 14400)
endforeach()

# Faults planted one by one, each of which a test must notice; the tests' own build compiles them.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME nightly/planted_faults COMMAND Python3::Interpreter
         "${CMAKE_CURRENT_SOURCE_DIR}/mutants/run.py" "${PROJECT_BINARY_DIR}")
set_tests_properties(nightly/planted_faults PROPERTIES LABELS nightly TIMEOUT 7200 RUN_SERIAL ON)

# Programs of this build, which know of no instruction set beyond the first, on machines that have no
# AVX, or AVX2 but no AVX-512. What emulates them must be installed: nothing is skipped.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  find_program(MHLA_QEMU_X86_64 qemu-x86_64 DOC "What emulates old machines, for MHLA_NIGHTLY")
  foreach(machine IN ITEMS Nehalem Haswell)
    foreach(program IN ITEMS cpu_gemm golden_core)
      if(MHLA_QEMU_X86_64)
        set(command "${MHLA_QEMU_X86_64}" -cpu ${machine} $<TARGET_FILE:test_${program}>)
      else()
        set(command sh -c "echo 'There is no qemu-x86_64 here: install qemu-user' && false")
      endif()
      add_test(NAME nightly/${machine}_${program} COMMAND ${command})
      set_tests_properties(nightly/${machine}_${program} PROPERTIES LABELS nightly TIMEOUT 1800)
    endforeach()
  endforeach()
endif()
