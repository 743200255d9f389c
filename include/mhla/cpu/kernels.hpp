// SPDX-License-Identifier: MIT
// The kernels of kernels.inc for every instruction set, and the choice among them at run time: a
// program that is compiled without a word about the machine runs with the machine's vectors. The
// instruction set is part of a kernel's type, so that translation units compiled with different
// flags may meet in one program.
#pragma once

#include <cstddef>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cpu {

// Loops of a tile are written out: their sums are registers. g++ optimizes kernels whatever the
// flags of the rest: without that it also leaves out what makes the way back from AVX to SSE code
// cheap.
#if defined(__clang__)
#define MHLA_UNROLL _Pragma("clang loop unroll(full)")
#define MHLA_KERNEL __attribute__(())
#define MHLA_KERNEL_FOR(features) __attribute__((target(features)))
#else
#define MHLA_UNROLL _Pragma("GCC unroll 8")
#define MHLA_KERNEL __attribute__((optimize("O2")))
#define MHLA_KERNEL_FOR(features) __attribute__((optimize("O2"), target(features)))
#endif

// One element after the other, of any type.
#define MHLA_ISA scalar
#define MHLA_ISA_TARGET MHLA_KERNEL
#define MHLA_ISA_BYTES 0
#define MHLA_ISA_ROWS 2
#define MHLA_ISA_VECTORS 2
#define MHLA_ISA_NARROWER scalar
#include <mhla/cpu/kernels.inc>

// Sixteen bytes: NEON, SSE2, or whatever the compiler makes of them.
#if defined(__aarch64__)
#define MHLA_PORTABLE_VECTORS 4
#else
#define MHLA_PORTABLE_VECTORS 2
#endif
#define MHLA_ISA portable
#define MHLA_ISA_TARGET MHLA_KERNEL
#define MHLA_ISA_BYTES 16
#define MHLA_ISA_ROWS 6
#define MHLA_ISA_VECTORS MHLA_PORTABLE_VECTORS
#define MHLA_ISA_NARROWER scalar
#include <mhla/cpu/kernels.inc>

#undef MHLA_PORTABLE_VECTORS

#if defined(__x86_64__)
#define MHLA_ISA avx2
#define MHLA_ISA_TARGET MHLA_KERNEL_FOR("avx2,fma")
#define MHLA_ISA_BYTES 32
#define MHLA_ISA_ROWS 6
#define MHLA_ISA_VECTORS 2
#define MHLA_ISA_NARROWER portable
#include <mhla/cpu/kernels.inc>

#define MHLA_ISA avx512
#define MHLA_ISA_TARGET MHLA_KERNEL_FOR("avx512f,avx512vl,avx512dq,fma")
#define MHLA_ISA_BYTES 64
#define MHLA_ISA_ROWS 6
#define MHLA_ISA_VECTORS 4
#define MHLA_ISA_NARROWER avx2
#include <mhla/cpu/kernels.inc>

#endif
#undef MHLA_UNROLL
#undef MHLA_KERNEL
#undef MHLA_KERNEL_FOR

/// Calls f with the kernels for T of the best instruction set that this machine has.
template <class T, class F>
void with_kernels(F&& f) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
      return f(avx512::Kernels<T>{});
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
      return f(avx2::Kernels<T>{});
#endif
    return f(portable::Kernels<T>{});
  } else {
    return f(scalar::Kernels<T>{});
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
