// SPDX-License-Identifier: MIT
// The attention that is trained, for the loop and for its kernels.
#pragma once

#include <mhla/policy/variant.hpp>

using ImageAttention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks2D>;
