// SPDX-License-Identifier: MIT
// A header that shows the library's types to its users.
#pragma once

#include <mhla/policy/variant.hpp>
#include <vector>

namespace layers {

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;

/// The matrix between that many blocks that a layer begins with.
std::vector<float> initial_mix(const Attention& attention, int blocks);

}  // namespace layers
