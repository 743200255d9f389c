// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <set>
#include <vector>

#include "tests/support/catch.hpp"

using namespace mhla;
using namespace mhla::testing;

namespace {}  // namespace

TEST_CASE("random_tensor: the stream is fixed for all time and platforms", "[testing]") {
  // splitmix64's published outputs for the state 1234567, which is the counter without the seed.
  CHECK(mix_bits(1234567u + 0x9e3779b97f4a7c15u) == 6457827717110365317u);
  CHECK(mix_bits(1234567u + 2 * 0x9e3779b97f4a7c15u) == 3203168211198807973u);
  CHECK(random_bits(0, 0) == mix_bits(0x9e3779b97f4a7c15u));
  CHECK(random_bits(0, 1) == mix_bits(2 * 0x9e3779b97f4a7c15u));
  CHECK(random_bits(1, 0) != random_bits(0, 1));
}

TEST_CASE("random_tensor: values depend on the index, not on strides or storage", "[testing]") {
  const auto expected = random_tensor<double>(Normal{}, 4, 2, 3, 5);
  HostTensor<float, 3> memory(5, 3, 2);
  const mhla::TensorView<float, 3> view{memory.view().data, {2, 3, 5}, {1, 2, 6}};
  fill_random(Normal{}, 4, view);
  CHECK(compare(view, expected.view()).max_error == 0);  // also: exact in float
}
