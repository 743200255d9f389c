// SPDX-License-Identifier: MIT
// What is checked on tensors of 16 bits.
#include "checks.hpp"

namespace gpu {

namespace {
[[maybe_unused]] const bool entered_bfloat16 = enter_groups<mhla::BFloat16>();
[[maybe_unused]] const bool entered_half = enter_groups<mhla::Half>();
}  // namespace

}  // namespace gpu
