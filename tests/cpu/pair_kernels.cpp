// SPDX-License-Identifier: MIT
// Products of bfloat16 in pairs as programs with MHLA_PAIR_PRODUCTS_STAND_IN have them. These are
// linked before mhla::kernels, whose own are the machine's.
#include <mhla/cpu/kernels_elsewhere.hpp>

#if !defined(MHLA_PAIR_PRODUCTS_STAND_IN)
#error "compile with MHLA_PAIR_PRODUCTS_STAND_IN"
#endif

MHLA_NAMESPACE_BEGIN

namespace cpu {

MHLA_PAIR_KERNELS()

}  // namespace cpu

MHLA_NAMESPACE_END
