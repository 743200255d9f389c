// SPDX-License-Identifier: MIT
// What the CPU backend runs with here, in words.
#pragma once

#include <mhla/cpu/instruction_set.hpp>
#include <string>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// The instruction set of this machine's kernels, and what Precision::fast multiplies bfloat16
/// with: "AVX-512; bfloat16 by VDPBF16PS", or "AVX2; bfloat16 in float".
/// \ingroup core_calls
inline std::string describe() {
#if defined(__x86_64__)
  const InstructionSet set = instruction_set();
  std::string text = set == InstructionSet::avx512 ? "AVX-512"
                     : set == InstructionSet::avx2 ? "AVX2"
                                                   : "SSE2";
#elif defined(__aarch64__)
  std::string text = "NEON";
#else
  std::string text = "vectors of 16 bytes";
#endif
  text += "; bfloat16 ";
#if defined(MHLA_PAIR_PRODUCTS_STAND_IN)
  text += "by a stand-in for ";
#else
  text += has_pair_products() ? "by " : "in ";
#endif
  constexpr const char* names[] = {"float", "VDPBF16PS", "TDPBF16PS", "BFMMLA"};
  return text + names[static_cast<int>(pair_instruction())];
}

}  // namespace cpu

MHLA_NAMESPACE_END
