// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstdio>
#include <layers.hpp>
#include <mhla/distributed/communicator.hpp>
#include <mhla/policy/fingerprint.hpp>

namespace {

int failures = 0;
void expect(bool holds, const char* what) {
  if (!holds) std::printf("Not so: %s\n", what), ++failures;
}

// The shared library hides whatever it does not export, as many do. Some standard libraries compare
// the addresses of types.
void check_types_across_shared_objects() {
  const std::vector<const std::type_info*> ours = {
      &typeid(mhla::Error),      &typeid(mhla::ShapeError), &typeid(mhla::WorkspaceError),
      &typeid(mhla::StateError), &typeid(mhla::CudaError),  &typeid(mhla::CommunicationError)};
  expect(layers::exceptions() == ours, "exceptions have the same types in both objects");
  expect(layers::number_of_attention() ==
             mhla::fingerprint::number_of_types<layers::Attention, float>(),
         "a saved state of one object is known in the other");
  try {
    layers::initial_mix({.blocks = {.grid = {4, 4}, .block = {2, 2}}}, 5);
    expect(false, "a matrix of 5 blocks is refused");
  } catch (const mhla::ShapeError&) {
  } catch (const std::exception&) {
    expect(false, "ShapeError is caught as such");
  }
}

}  // namespace

int main() {
  const layers::Attention attention{.blocks = {.grid = {4, 4}, .block = {2, 2}}};
  float column = 0;
  const std::vector<float> mix = layers::initial_mix(attention, 4);
  for (int row = 0; row < 4; ++row) column += mix[static_cast<std::size_t>(4 * row)];
  std::printf("The first column sums to %g\n", static_cast<double>(column));
  expect(std::abs(column - 1) < 1e-6f, "it sums to 1");
  check_types_across_shared_objects();
  return failures;
}
