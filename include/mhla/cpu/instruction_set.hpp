// SPDX-License-Identifier: MIT
// What this machine has of the instruction sets that there are kernels for.
#pragma once

#include <mhla/core/config.hpp>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

MHLA_NAMESPACE_BEGIN

namespace cpu {

// Longer vectors are not chosen. If a program defines it, it must be the same in all translation
// units.
#if !defined(MHLA_MAX_VECTOR_BYTES)
#define MHLA_MAX_VECTOR_BYTES 64
#endif

#if defined(__x86_64__)
/// Instruction sets that there are kernels for besides scalar ones; a machine runs the last it has.
enum class InstructionSet { portable, avx2, avx512 };
MHLA_OUT_OF_LINE inline InstructionSet instruction_set() {
  __builtin_cpu_init();  // a call may be made before static initialization
  if (MHLA_MAX_VECTOR_BYTES >= 64 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return InstructionSet::avx512;
  if (MHLA_MAX_VECTOR_BYTES >= 32 && __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("fma"))
    return InstructionSet::avx2;
  return InstructionSet::portable;
}

/// Whether there is VDPBF16PS, whatever its rate.
inline bool has_vdpbf16ps() {
  return instruction_set() == InstructionSet::avx512 && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512bf16");
}

/// Whether there are tile registers for TDPBF16PS, and the system lets this process use them; asks
/// it for that, once. Linux does not where a thread's alternate signal stack has no room for them,
/// and accepts no such stack afterwards.
inline bool has_tdpbf16ps() {
#if defined(__linux__)
  static const bool has = [] {
    unsigned a, b, c, d;
    constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
    if (!has_vdpbf16ps() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & amx_bf16) == 0 ||
        (d & amx_tile) == 0)
      return false;
    constexpr long ask_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
    return syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
  }();
  return has;
#else
  return false;
#endif
}
#endif

#if defined(__aarch64__)
/// Whether there are BFMMLA and BFDOT.
inline bool has_bfmmla() {
#if defined(__linux__)
  constexpr unsigned long bf16 = 1ul << 14;  // HWCAP2_BF16
  return (getauxval(AT_HWCAP2) & bf16) != 0;
#else
  return false;
#endif
}
#endif

/// Instructions that multiply bfloat16 in pairs; describe() has their names.
enum class PairInstruction { none, vdpbf16ps, tdpbf16ps, bfmmla };

/// The one that this machine has at a higher rate than float's: VDPBF16PS at that of FMA on AMD's
/// Zen 4 and later (Intel's cores run it at half of that), tiles on Intel's, or BFMMLA.
#if defined(MHLA_PAIR_PRODUCTS_STAND_IN)
PairInstruction pair_instruction();  // the test program's choice
#else
MHLA_OUT_OF_LINE inline PairInstruction pair_instruction() {
#if defined(__x86_64__)
  if (has_tdpbf16ps()) return PairInstruction::tdpbf16ps;
  if (has_vdpbf16ps() && __builtin_cpu_is("amd")) return PairInstruction::vdpbf16ps;
#elif defined(__aarch64__)
  if (has_bfmmla()) return PairInstruction::bfmmla;
#endif
  return PairInstruction::none;
}
#endif

/// Whether there is one.
inline bool has_pair_products() { return pair_instruction() != PairInstruction::none; }

}  // namespace cpu

MHLA_NAMESPACE_END
