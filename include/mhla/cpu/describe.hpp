// SPDX-License-Identifier: MIT
// What the CPU backend runs with here, in words.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/cpu/kernels.hpp>
#include <string>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// \addtogroup core_calls
/// \{

/// The instruction set of this machine's kernels, and what Precision::fast multiplies bfloat16
/// with: "AVX-512; bfloat16 by VDPBF16PS", or "AVX2; bfloat16 in float".
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
#if defined(MHLA_PAIR_PRODUCTS_STAND_IN)
  return text + "; bfloat16 by a stand-in for VDPBF16PS";
#else
  return text + (has_pair_products() ? "; bfloat16 by VDPBF16PS" : "; bfloat16 in float");
#endif
}

/// \}

}  // namespace cpu

MHLA_NAMESPACE_END
