// SPDX-License-Identifier: MIT
// The variants of a program, named for its .cpp and for the .cu that CMake writes.
#pragma once

#include <mhla/policy/variant.hpp>

namespace program {

using Vision = mhla::Attention<mhla::EluPlusOne, mhla::Blocks2D>;
/// Not among the kernels that are compiled.
using Missing = mhla::Attention<mhla::Hedgehog, mhla::Blocks1D, mhla::BlockCausal>;

}  // namespace program

/// A name that the library has as well.
using Attention = program::Vision;
