// SPDX-License-Identifier: MIT
#include <layers.hpp>
#include <mhla/mixing_matrix.hpp>

std::vector<float> layers::initial_mix(const Attention& attention, int blocks) {
  std::vector<float> mix(static_cast<std::size_t>(blocks * blocks));
  mhla::initialize(mhla::make_view(mix.data(), 1, blocks, blocks), attention);
  return mix;
}
