// SPDX-License-Identifier: MIT
// A header that shows the library's types to its users.
#pragma once

#include <cstdint>
#include <mhla/policy/variant.hpp>
#include <typeinfo>
#include <vector>

#define LAYERS_EXPORT __attribute__((visibility("default")))

namespace layers {

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;

/// The matrix between that many blocks that a layer begins with.
LAYERS_EXPORT std::vector<float> initial_mix(const Attention& attention, int blocks);

/// The number by which the library knows a variant's type.
LAYERS_EXPORT std::uint64_t number_of_attention();

/// The types of what it throws.
LAYERS_EXPORT std::vector<const std::type_info*> exceptions();

}  // namespace layers
