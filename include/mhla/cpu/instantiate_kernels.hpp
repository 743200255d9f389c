// SPDX-License-Identifier: MIT
// Compiles the products of every instruction set, for float and double, into the translation unit
// that includes it: one unit of a program whose others are compiled with MHLA_KERNELS_ELSEWHERE,
// and then take a fraction of the time.
#pragma once

#include <mhla/cpu/kernels.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

MHLA_EVERY_KERNEL()

}  // namespace cpu

MHLA_NAMESPACE_END
