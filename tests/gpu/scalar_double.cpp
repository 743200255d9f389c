// SPDX-License-Identifier: MIT
// What is checked on tensors of double.
#include "checks.hpp"

namespace gpu {

namespace {
[[maybe_unused]] const bool entered = enter_groups<double>();
}  // namespace

}  // namespace gpu
