// SPDX-License-Identifier: MIT
// Runs the library on a case, and says how far a result is from what it should be in units of what
// rounding alone can do.
#pragma once

#include <cmath>
#include <cstddef>
#include <iomanip>
#include <limits>
#include <mhla/testing/comparison.hpp>
#include <type_traits>

#include "tests/laws/harness/magnitude.hpp"
#include "tests/laws/harness/random_case.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/tolerances.hpp"

namespace laws {

/// NaN everywhere: a destination must be written in full.
template <class T, int Rank>
void poison(HostTensor<T, Rank>& destination) {
  for (T& x : destination.elements()) x = std::numeric_limits<T>::quiet_NaN();
}

template <class T>
HostTensor<T, 4> output_of(const Variant& variant, const Setting& setting,
                           const Operands<T>& operands) {
  HostTensor<T, 4> y(operands.q.extent[0], operands.q.extent[1], operands.q.extent[2],
                     operands.v.extent[3]);
  poison(y);
  backend_in<T>(variant).forward(setting, operands, y.view());
  return y;
}
inline HostTensor<double, 4> output_of(const Variant& variant, const Case& random) {
  return output_of(variant, random.setting, random.operands());
}

template <class T>
Gradients<T> gradients_of(const Variant& variant, const Setting& setting,
                          const Operands<T>& operands,
                          const std::type_identity_t<TensorView<const T, 4>>& dy) {
  auto grad = zero_gradients<T>(operands);
  poison(grad.q);
  poison(grad.k);
  poison(grad.v);
  poison(grad.mix);
  backend_in<T>(variant).backward(setting, operands, dy, grad.views(), Update::overwrite);
  return grad;
}

/// What forward and backward give, or should.
template <class T>
struct Outcome {
  HostTensor<T, 4> y;
  Gradients<T> gradients;
};

/// Of the library in scalar type T.
template <class T = double>
Outcome<T> run(const Variant& variant, const Case& random) {
  const Tensors<T> tensors(random);
  return {output_of(variant, random.setting, tensors.operands()),
          gradients_of(variant, random.setting, tensors.operands(), tensors.dy)};
}

/// Of an oracle.
inline Outcome<Wide> expected(const Variant& variant, const Case& random,
                              Formula formula = Formula::mhla) {
  const Tensors<Wide> wide(random);
  return {expected_output(formula, variant, random.setting, wide.operands()),
          expected_gradients(formula, variant, random.setting, wide.operands(), wide.dy)};
}

/// The sizes of the terms that a call's results are summed from; `y` is its output.
template <class T>
CallMagnitudes magnitudes(const Variant& variant, const Case& random, const HostTensor<T, 4>& y) {
  const Tensors<Wide> wide(random);
  return magnitudes_of(variant, random.setting, wide.operands(), mhla::testing::converted<Wide>(y),
                       &wide.dy);
}
template <class T>
HostTensor<double, 4> output_magnitude(const Variant& variant, const Case& random,
                                       const HostTensor<T, 4>& y) {
  const Tensors<Wide> wide(random);
  return magnitudes_of(variant, random.setting, wide.operands(), mhla::testing::converted<Wide>(y),
                       nullptr)
      .y;
}

/// Requires |actual - wanted| <= (unit roundoff of T) magnitude, times the roundings that `runs`
/// runs of the library make, of every element.
template <class T, class U, int Rank>
void require_near(const char* name, const HostTensor<T, Rank>& actual,
                  const HostTensor<U, Rank>& wanted, const HostTensor<double, Rank>& magnitude,
                  double runs) {
  REQUIRE(actual.size() == wanted.size());
  REQUIRE(actual.size() == magnitude.size());
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < actual.elements().size(); ++i) {
    const Wide error =
        std::abs(static_cast<Wide>(actual.elements()[i]) - static_cast<Wide>(wanted.elements()[i]));
    const double unit = magnitude.elements()[i] * tolerance::unit_roundoff<T>;
    double roundings = error == 0 ? 0 : static_cast<double>(error) / unit;
    if (std::isnan(roundings)) roundings = std::numeric_limits<double>::infinity();
    if (roundings > worst) {
      worst = roundings;
      at = i;
    }
  }
  if (actual.size() > 0)
    UNSCOPED_INFO(std::setprecision(17)
                  << name << ": worst is element " << at << ", got " << actual.elements()[at]
                  << ", expected " << wanted.elements()[at] << ", off by " << worst
                  << " roundings of a term");
  REQUIRE(worst <= runs * tolerance::roundings);
}

template <int Rank>
bool same_bits(const HostTensor<double, Rank>& a, const HostTensor<double, Rank>& b) {
  return mhla::testing::bitwise_equal(a.view(), b.view());
}
inline void require_same_bits(const Gradients<double>& a, const Gradients<double>& b) {
  REQUIRE(same_bits(a.q, b.q));
  REQUIRE(same_bits(a.k, b.k));
  REQUIRE(same_bits(a.v, b.v));
  REQUIRE(same_bits(a.mix, b.mix));
}
inline void require_same_bits(const Outcome<double>& a, const Outcome<double>& b) {
  REQUIRE(same_bits(a.y, b.y));
  require_same_bits(a.gradients, b.gradients);
}

template <int Rank>
HostTensor<double, Rank> times(double factor, HostTensor<double, Rank> tensor) {
  for (double& x : tensor.elements()) x *= factor;
  return tensor;
}
inline Gradients<double> times(double factor, const Gradients<double>& x, double of_mix) {
  return {times(factor, x.q), times(factor, x.k), times(factor, x.v), times(of_mix, x.mix)};
}

/// What of an outcome a law speaks of.
enum class Compare { everything, all_but_mix };

template <class T, class U>
void require_near(const Outcome<T>& actual, const Outcome<U>& wanted,
                  const CallMagnitudes& magnitude, double runs,
                  Compare compare = Compare::everything) {
  require_near("y", actual.y, wanted.y, magnitude.y, runs);
  require_near("dq", actual.gradients.q, wanted.gradients.q, magnitude.gradients.q, runs);
  require_near("dk", actual.gradients.k, wanted.gradients.k, magnitude.gradients.k, runs);
  require_near("dv", actual.gradients.v, wanted.gradients.v, magnitude.gradients.v, runs);
  if (compare == Compare::everything)
    require_near("dmix", actual.gradients.mix, wanted.gradients.mix, magnitude.gradients.mix, runs);
}

}  // namespace laws
