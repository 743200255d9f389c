// SPDX-License-Identifier: MIT
// What is checked on tensors of float.
#include "checks.hpp"

namespace gpu {

namespace {
[[maybe_unused]] const bool entered = enter_groups<float>();
}  // namespace

}  // namespace gpu
