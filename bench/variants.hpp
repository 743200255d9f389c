// SPDX-License-Identifier: MIT
// The variants that shapes are run with.
#pragma once

#include <cmath>
#include <mhla/policy/variant.hpp>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "shapes.hpp"

namespace bench {

/// The released language model's.
inline auto language_attention(const Shape& shape) {
  return mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                         mhla::HalfSplitRotary>{
      .feature_map = {.epsilon = 0},
      .blocks = {shape.block[2]},
      .scale = 1 / std::sqrt(static_cast<double>(shape.key_dim))};
}

/// Calls f with the variant that a shape is run with; float and bfloat16 have all. A grid of three
/// axes stands for images too, their first axis being 1: geometries are lowered to the same tables.
template <class T, class F>
auto with_variant(const Shape& shape, F&& f) {
  using mhla::Attention, mhla::Relu, mhla::Bidirectional, mhla::Blocks3D;
  const Blocks3D blocks{{shape.grid[0], shape.grid[1], shape.grid[2]},
                        {shape.block[0], shape.block[1], shape.block[2]}};
  if (shape.model == Model::language) return f(language_attention(shape));
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, mhla::BFloat16>) {
    if (shape.model == Model::product)
      return f(Attention<Relu, Blocks3D, Bidirectional, mhla::MixedProduct>{.blocks = blocks});
    if (shape.model == Model::video)
      return f(Attention<Relu, Blocks3D, Bidirectional, mhla::Unnormalized, mhla::AxialRotary>{
          .blocks = blocks});
  }
  if (shape.model != Model::key_sum)
    throw std::invalid_argument(shape.name + " is not compiled for this scalar");
  return f(Attention<Relu, Blocks3D>{.blocks = blocks});
}

}  // namespace bench
