// SPDX-License-Identifier: MIT
// Products of bfloat16 in pairs as programs with MHLA_PAIR_PRODUCTS_STAND_IN have them: by a
// stand-in for the instruction that the environment's MHLA_STAND_IN names, or for VDPBF16PS. These
// are linked before mhla::kernels, whose own are the machine's.
#include <cstdlib>
#include <mhla/cpu/kernels_elsewhere.hpp>
#include <string>

#if !defined(MHLA_PAIR_PRODUCTS_STAND_IN)
#error "compile with MHLA_PAIR_PRODUCTS_STAND_IN"
#endif

MHLA_NAMESPACE_BEGIN

namespace cpu {

PairInstruction pair_instruction() {
  static const PairInstruction instruction = [] {
    const char* const name = std::getenv("MHLA_STAND_IN");
    const std::string chosen = name == nullptr ? "VDPBF16PS" : name;
    if (chosen == "VDPBF16PS") return PairInstruction::vdpbf16ps;
    if (chosen == "TDPBF16PS") return PairInstruction::tdpbf16ps;
    if (chosen == "BFMMLA") return PairInstruction::bfmmla;
    std::abort();
  }();
  return instruction;
}

MHLA_PAIR_KERNELS()

}  // namespace cpu

MHLA_NAMESPACE_END
