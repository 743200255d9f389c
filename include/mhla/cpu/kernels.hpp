// SPDX-License-Identifier: MIT
// The kernels of kernels.inc for every instruction set, and the choice among them at run time: a
// program compiled without architecture flags uses the machine's vectors. The instruction set is
// part of a kernel's type, so that translation units compiled with different flags can be linked
// into one program.
#pragma once

#include <limits>
#include <mhla/cpu/exponential.hpp>
#include <mhla/cpu/instruction_set.hpp>
#include <mhla/cpu/kernels/operands.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

// Loops over a tile are unrolled: their sums are registers. g++ optimizes kernels whatever the
// flags of the rest; otherwise it would also omit what makes the transition from AVX to SSE code
// cheap. Of -O3, loops use only the vectorizer: the rest doubles their compile time. On x86 tiles
// go without the passes of -O2 that take a ninth of a program's compile time and find nothing in
// them: their branches are few, and the processor reorders instructions itself.
#define MHLA_NOINLINE __attribute__((noinline))
#define MHLA_INLINE __attribute__((always_inline))
#if defined(__clang__)
#define MHLA_UNROLL _Pragma("clang loop unroll(full)")
#define MHLA_KERNEL __attribute__(())
#define MHLA_KERNEL_LOOP __attribute__(())
#else
#define MHLA_UNROLL _Pragma("GCC unroll 16")
#if defined(__x86_64__)
#define MHLA_KERNEL                                                                \
  __attribute__((optimize("O2", "no-tree-vectorize", "no-tree-vrp", "no-tree-ccp", \
                          "no-tree-dominator-opts", "no-thread-jumps", "no-gcse",  \
                          "no-schedule-insns2")))
#else
#define MHLA_KERNEL __attribute__((optimize("O2", "no-tree-vectorize")))
#endif
#define MHLA_KERNEL_LOOP \
  __attribute__((optimize("O2", "tree-loop-vectorize", "vect-cost-model=dynamic")))
#endif
#define MHLA_KERNEL_FOR(features) MHLA_KERNEL __attribute__((target(features)))
#define MHLA_KERNEL_LOOP_FOR(features) MHLA_KERNEL_LOOP __attribute__((target(features)))

// nvcc warns of g++'s pragmas, which it passes on to g++.
#if defined(__CUDACC__) && defined(__NVCC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675
#endif

// One element at a time, of any type.
#define MHLA_ISA scalar
#define MHLA_ISA_TARGET MHLA_KERNEL
#define MHLA_ISA_LOOP MHLA_KERNEL_LOOP
#define MHLA_ISA_BYTES 0
#define MHLA_ISA_ROWS 2
#define MHLA_ISA_VECTORS 2
#include <mhla/cpu/kernels.inc>

// Sixteen bytes: NEON, SSE2, or what the compiler maps them to. Few tile shapes where almost every
// machine has longer vectors: every program compiles them.
#define MHLA_ISA portable
#define MHLA_ISA_TARGET MHLA_KERNEL
#define MHLA_ISA_BYTES 16
#if defined(__x86_64__)
#define MHLA_ISA_LOOP MHLA_KERNEL
#define MHLA_ISA_ROWS 4
#define MHLA_ISA_VECTORS 1
#else
#define MHLA_ISA_LOOP MHLA_KERNEL_LOOP
#define MHLA_ISA_ROWS 6
#if defined(__aarch64__)
#define MHLA_ISA_VECTORS 4
#else
#define MHLA_ISA_VECTORS 2
#endif
#endif
#if defined(__aarch64__) && defined(__clang__)
#define MHLA_ISA_PAIR_TARGET MHLA_KERNEL_FOR("bf16")
#define MHLA_ISA_PAIR_LOOP MHLA_KERNEL_LOOP_FOR("bf16")
#elif defined(__aarch64__)
// In the order that they are written in, a tile's loads need no registers beyond those there are.
#define MHLA_ISA_PAIR_TARGET \
  __attribute__((optimize("O2", "no-tree-vectorize", "no-schedule-insns"), target("+bf16")))
#define MHLA_ISA_PAIR_LOOP MHLA_KERNEL_LOOP_FOR("+bf16")
#else
#define MHLA_ISA_PAIR_TARGET MHLA_KERNEL
#define MHLA_ISA_PAIR_LOOP MHLA_KERNEL_LOOP
#endif
#include <mhla/cpu/kernels.inc>

#if defined(__x86_64__)
// Every CPU with AVX2 has F16C.
#define MHLA_ISA avx2
#define MHLA_ISA_TARGET MHLA_KERNEL_FOR("avx2,fma,f16c")
#define MHLA_ISA_LOOP MHLA_KERNEL_LOOP_FOR("avx2,fma,f16c")
#define MHLA_ISA_BYTES 32
#define MHLA_ISA_ROWS 6
#define MHLA_ISA_VECTORS 2
#include <mhla/cpu/kernels.inc>

// In these versions of clang 512-bit registers are a separate feature, which zig switches off.
#if defined(__clang__) && !defined(__apple_build_version__) && __clang_major__ >= 18 && \
    __clang_major__ <= 21
#define MHLA_AVX512_FEATURES "avx512f,avx512vl,avx512dq,fma,evex512"
#else
#define MHLA_AVX512_FEATURES "avx512f,avx512vl,avx512dq,fma"
#endif
#define MHLA_ISA avx512
#define MHLA_ISA_TARGET MHLA_KERNEL_FOR(MHLA_AVX512_FEATURES)
#define MHLA_ISA_LOOP MHLA_KERNEL_LOOP_FOR(MHLA_AVX512_FEATURES)
#define MHLA_ISA_BYTES 64
#define MHLA_ISA_ROWS 6
#define MHLA_ISA_VECTORS 4
// Compilers use none of these but where they are written.
#define MHLA_PAIR_FEATURES MHLA_AVX512_FEATURES ",avx512bw,avx512bf16,amx-tile,amx-bf16"
#define MHLA_ISA_PAIR_TARGET MHLA_KERNEL_FOR(MHLA_PAIR_FEATURES)
#define MHLA_ISA_PAIR_LOOP MHLA_KERNEL_LOOP_FOR(MHLA_PAIR_FEATURES)
#include <mhla/cpu/kernels.inc>
#undef MHLA_PAIR_FEATURES
#undef MHLA_AVX512_FEATURES

#endif
#if defined(__CUDACC__) && defined(__NVCC__)
#pragma nv_diagnostic pop
#endif
#undef MHLA_PRODUCTS_ONCE
#undef MHLA_UNROLL
#undef MHLA_NOINLINE
#undef MHLA_INLINE
#undef MHLA_KERNEL
#undef MHLA_KERNEL_LOOP
#undef MHLA_KERNEL_FOR
#undef MHLA_KERNEL_LOOP_FOR

/// Calls f with the kernels for T of the best instruction set that this machine has.
template <class T, class F>
void with_kernels(F&& f) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
#if defined(__x86_64__)
    const InstructionSet set = instruction_set();
    if (set == InstructionSet::avx512) return f(avx512::Kernels<T>{});
    if (set == InstructionSet::avx2) return f(avx2::Kernels<T>{});
#endif
    return f(portable::Kernels<T>{});
  } else {
    return f(scalar::Kernels<T>{});
  }
}

/// Calls f with the kernels of pair_instruction(), or any if there is none; T is float.
template <class T, class F>
void with_pair_kernels(F&& f) {
#if defined(MHLA_PAIR_PRODUCTS_STAND_IN)
  using portable::PairKernels;
  using namespace portable::stand_in;
  switch (pair_instruction()) {
    case PairInstruction::bfmmla:
      return f(PairKernels<T, Bfmmla>{});
    case PairInstruction::tdpbf16ps:
      return f(portable::TiledPairKernels<T, PairKernels<T, Vdpbf16ps>, Tdpbf16ps>{});
    default:
      return f(PairKernels<T, Vdpbf16ps>{});
  }
#elif defined(__x86_64__)
  using Vectors = avx512::PairKernels<T, avx512::Vdpbf16ps>;
  if (has_tdpbf16ps()) return f(avx512::TiledPairKernels<T, Vectors, avx512::Tdpbf16ps>{});
  return f(Vectors{});
#elif defined(__aarch64__)
  return f(portable::PairKernels<T, portable::Bfmmla>{});
#else
  return f(portable::PairKernels<T, portable::stand_in::Vdpbf16ps>{});
#endif
}

}  // namespace cpu

MHLA_NAMESPACE_END
