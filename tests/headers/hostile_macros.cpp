// SPDX-License-Identifier: MIT
// All headers at once, after macros that well-known headers define.
//
// The standard library and Eigen stumble over many of these themselves, so they come first.
#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <unsupported/Eigen/CXX11/Tensor>

#include "include_standard.inc"
#if __has_include(<mpi.h>)
#include <mpi.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "hostile_macros.inc"
#include "include_all.inc"

int all_headers_with_hostile_macros() { return 0; }
