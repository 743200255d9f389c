// SPDX-License-Identifier: MIT
// Compiles the kernels into the translation unit that includes it: one unit of a program compiled
// with MHLA_KERNELS_ELSEWHERE.
#pragma once

#include <mhla/cpu/kernels_elsewhere.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

MHLA_EVERY_KERNEL()

}  // namespace cpu

MHLA_NAMESPACE_END
