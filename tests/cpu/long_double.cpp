// SPDX-License-Identifier: MIT
// A scalar the backend has no kernels for runs on the portable path, in its own precision.
#include <mhla/cpu/pipeline.hpp>

#include "tests/cpu/call.hpp"

namespace {

using call::operands;
using call::Operands;
using namespace mhla;

const Attention<EluPlusOne, Blocks2D> image{.blocks = {.grid = {5, 7}, .block = {2, 3}}};
const Shape image_shape{2, 6, 2, 35, 35, 5, 7};

}  // namespace

TEST_CASE("long double: as close to the oracle as its own roundoff", "[cpu]") {
  call::check_against_oracle(image, operands<long double>(image, image_shape));
  const Attention<EluPlusOne, Blocks1D, Bidirectional, MixedProduct, HalfSplitRotary> sequence{
      .blocks = {.block = 7}};
  call::check_against_oracle(sequence, operands<long double>(sequence, {2, 4, 2, 35, 35, 6, 5, 4}));
}

// At 35 tokens double is wrong by 1e-16: what agrees to 1e-17 has not been through a double.
TEST_CASE("long double: no double hides in it", "[cpu]") {
  const Operands<long double> x = operands<long double>(image, image_shape);
  const auto y = call::forward(image, x);
  const auto in_double = call::forward(image, call::converted<double>(x));
  const auto result = mhla::testing::compare(in_double.view(), y.view());
  INFO(result.report());
  CHECK(result.rms_ratio > 4 * tolerance::forward_rms<long double>);
}
