// SPDX-License-Identifier: MIT
#include <layers.hpp>
#include <mhla/distributed/communicator.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mhla/policy/fingerprint.hpp>

std::vector<float> layers::initial_mix(const Attention& attention, int blocks) {
  std::vector<float> mix(static_cast<std::size_t>(blocks * blocks));
  mhla::initialize(mhla::make_view(mix.data(), 1, blocks, blocks), attention);
  return mix;
}

std::uint64_t layers::number_of_attention() {
  return mhla::fingerprint::number_of_types<Attention, float>();
}

std::vector<const std::type_info*> layers::exceptions() {
  return {&typeid(mhla::Error),      &typeid(mhla::ShapeError), &typeid(mhla::WorkspaceError),
          &typeid(mhla::StateError), &typeid(mhla::CudaError),  &typeid(mhla::CommunicationError)};
}
