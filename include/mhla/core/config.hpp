// SPDX-License-Identifier: MIT
// The macros every header of the library stands on. All begin with MHLA_.
#pragma once

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
