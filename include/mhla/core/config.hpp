// SPDX-License-Identifier: MIT
// The macros every header of the library stands on. All begin with MHLA_.
#pragma once

// A compiler goes on after #error, and has 3,000 lines to say on concepts; a missing file ends it.
#if __cplusplus < 202002L
#error "mhla needs C++20: compile with -std=c++20"
#include <mhla needs -std=c++20>
#endif

// Where the compiler assumes that there is no NaN, even a test that compares with one passes.
#if (defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)) && \
    !defined(MHLA_ALLOW_FAST_MATH)
#error "mhla: -ffast-math breaks comparisons with NaN: omit it, or define MHLA_ALLOW_FAST_MATH"
#endif

// The inline namespace changes with every incompatible version, so that two versions of the
// library can meet in one program without sharing symbols.
#define MHLA_NAMESPACE_BEGIN \
  namespace mhla {           \
  inline namespace v0 {
#define MHLA_NAMESPACE_END \
  }                        \
  }

// Functions that kernels call as well. Policies and the vocabulary carry it throughout.
#if defined(__CUDACC__)
#define MHLA_HOST_DEVICE __host__ __device__
#else
#define MHLA_HOST_DEVICE
#endif

// Functions that are not made a part of their callers: what throws, and what many places call that
// need not be fast. They are compiled once, not at every call.
#define MHLA_OUT_OF_LINE __attribute__((noinline))
