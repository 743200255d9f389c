// SPDX-License-Identifier: MIT
// Of 16-bit tensors only the stored results are rounded: they have the bits of the float run on the
// same values, rounded once.
#include <mhla/cpu/pipeline.hpp>

#include "tests/cpu/call.hpp"

namespace {

using call::bitwise_equal;
using call::Gradients;
using call::operands;
using call::Operands;
using mhla::Attention;
using mhla::Blocks2D;
using mhla::EluPlusOne;
using mhla::Shape;
using mhla::Update;

const Attention<EluPlusOne, Blocks2D> image{.blocks = {.grid = {5, 7}, .block = {2, 3}}};
const Shape image_shape{2, 6, 2, 35, 35, 5, 7};

}  // namespace

TEMPLATE_TEST_CASE("16-bit tensors have the rounded results of float", "[cpu]", mhla::BFloat16,
                   mhla::Half) {
  using T = TestType;
  const Operands<T> x = operands<T>(image, image_shape);
  const Operands<float> wide = call::converted<float>(x);
  const auto check_rounded = [](const auto& narrow, const auto& full) {
    CHECK(bitwise_equal(narrow.view(), mhla::testing::converted<T>(full).view()));
  };
  check_rounded(call::forward(image, x), call::forward(image, wide));
  Gradients<T> gradients = call::backward(image, x);
  Gradients<float> full = call::backward(image, wide);
  check_rounded(gradients.query, full.query);
  check_rounded(gradients.key, full.key);
  check_rounded(gradients.value, full.value);
  CHECK(bitwise_equal(gradients.mix.view(), full.mix.view()));  // is not stored in 16 bits

  // Added in float, rounded once.
  call::backward_to(full.views(), Update::overwrite, image, wide);
  Gradients<float> sums(wide);
  call::backward_to(sums.views(), Update::accumulate, image, wide);
  Gradients<T> rounded_sums(x);
  call::backward_to(rounded_sums.views(), Update::accumulate, image, x);
  check_rounded(rounded_sums.query, sums.query);
  check_rounded(rounded_sums.key, sums.key);
  check_rounded(rounded_sums.value, sums.value);
  CHECK(bitwise_equal(rounded_sums.mix.view(), sums.mix.view()));
}

TEMPLATE_TEST_CASE("16-bit tensors are as close to the oracle as their rounding", "[cpu]",
                   mhla::BFloat16, mhla::Half) {
  const Operands<TestType> x = operands<TestType>(image, image_shape);
  const auto y = call::forward(image, x);
  const auto expected = call::oracle_forward(image, call::converted<double>(x));
  const auto result = mhla::testing::compare(y.view(), expected.view());
  INFO(result.report());
  CHECK(result.rms_ratio <= tolerance::forward_rms<TestType>);
}
