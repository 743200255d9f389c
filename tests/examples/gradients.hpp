// SPDX-License-Identifier: MIT
// Gradients of models against central differences.
#pragma once

#include <mhla/testing/gradient_check.hpp>

#include "examples/layers/parameters.hpp"
#include "tests/support/catch.hpp"

namespace test {

using layers::Index;

template <class All>
auto view(All& all) {
  return mhla::make_view(all.data(), all.size());
}

inline layers::Matrix<double> random_matrix(Index rows, Index columns, std::uint64_t seed) {
  layers::Matrix<double> matrix(rows, columns);
  mhla::testing::fill_random(mhla::testing::Normal{}, seed, view(matrix));
  return matrix;
}

/// An operand, and the gradient claimed for it.
template <class M>
auto with(M& operand, const M& gradient) {
  return mhla::testing::differentiate(view(operand), view(gradient));
}

/// Checks the gradient of loss(values), in steps of this scale of all values at once: alone, a
/// small one moves the loss too little for its difference to be exact.
template <class Values, class Scale, class Loss, class... Operands>
void require_gradient(double tolerance, const Values& origin, const Scale& scale,
                      const Values& gradient, const Loss& loss, const Operands&... operands) {
  Values displacement = Values::Zero(origin.size());
  const Values slope = scale * gradient;
  const auto displaced_loss = [&] {
    const Values displaced = origin + scale * displacement;
    return loss(displaced);
  };
  const auto check =
      mhla::testing::check_gradient(displaced_loss, 7, 4, operands..., with(displacement, slope));
  INFO(check);
  REQUIRE(check.error <= tolerance);
}

}  // namespace test
