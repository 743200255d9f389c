// SPDX-License-Identifier: MIT
// Law 11: backward is the adjoint of forward's derivative, <J x, w> = <x, J^T w>. (Each stage's own
// adjoint is shown in tests/cpu.) And what Euler's theorem makes of it where y is homogeneous,
// which holds to rounding, without any difference quotient.
#include <cmath>
#include <limits>
#include <mhla/testing/random_tensor.hpp>
#include <utility>
#include <vector>

#include "tests/laws/harness/for_each_case.hpp"
#include "tests/laws/harness/run.hpp"

namespace {

using namespace laws;

/// A sum, and the sum of the magnitudes of its terms.
struct Sum {
  Wide value = 0;
  Wide magnitude = 0;

  template <class A, class B, int Rank>
  void add(const HostTensor<A, Rank>& a, const HostTensor<B, Rank>& b) {
    for (std::size_t i = 0; i < a.elements().size(); ++i) {
      const Wide term = static_cast<Wide>(a.elements()[i]) * static_cast<Wide>(b.elements()[i]);
      value += term;
      magnitude += std::abs(term);
    }
  }
};

template <int Rank>
void displace(HostTensor<double, Rank>& x, double step, const HostTensor<double, Rank>& direction) {
  for (std::size_t i = 0; i < x.elements().size(); ++i)
    x.elements()[i] += step * direction.elements()[i];
}

/// J x by the central difference of fourth order: (8 (y(h) - y(-h)) - (y(2h) - y(-2h))) / (12 h).
HostTensor<Wide, 4> directional_derivative(const Variant& variant, const Case& at,
                                           const Gradients<double>& direction, double h) {
  auto sum = HostTensor<Wide, 4>::like(at.dy.view());
  for (const auto& [steps, weight] : {std::pair{1, 8}, {-1, -8}, {2, -1}, {-2, 1}}) {
    Case displaced = at;
    displace(displaced.q, steps * h, direction.q);
    displace(displaced.k, steps * h, direction.k);
    displace(displaced.v, steps * h, direction.v);
    displace(displaced.mix, steps * h, direction.mix);
    const HostTensor<double, 4> y = output_of(variant, displaced);
    for (std::size_t i = 0; i < sum.elements().size(); ++i)
      sum.elements()[i] += static_cast<Wide>(weight) * static_cast<Wide>(y.elements()[i]) /
                           (12 * static_cast<Wide>(h));
  }
  return sum;
}

}  // namespace

TEST_CASE("law 11: <J x, w> = <x, J^T w> for any w", "[laws][adjoint]") {
  for_each_case(
      {.small = true, .smooth = true}, 1, anything, [](const Variant& variant, Case random) {
        Draw draw(random.seed);
        auto x = zero_gradients<double>(random.operands());
        const mhla::testing::Uniform unit{-1, 1};
        mhla::testing::fill_random(unit, draw.bits(), x.q.view());
        mhla::testing::fill_random(unit, draw.bits(), x.k.view());
        mhla::testing::fill_random(unit, draw.bits(), x.v.view());
        mhla::testing::fill_random(unit, draw.bits(), x.mix.view());
        const double steps[] = {3e-3, 1e-3, 3e-4};
        std::vector<HostTensor<Wide, 4>> jx;
        for (const double h : steps) jx.push_back(directional_derivative(variant, random, x, h));

        for (int number = 0; number < 3; ++number) {
          HostTensor<double, 4>& w = random.dy;
          mhla::testing::fill_random(mhla::testing::Normal{}, draw.bits(), w.view());
          const Gradients<double> grad =
              gradients_of(variant, random.setting, random.operands(), w);
          Sum backward;
          backward.add(x.q, grad.q);
          backward.add(x.k, grad.k);
          backward.add(x.v, grad.v);
          backward.add(x.mix, grad.mix);
          double best = std::numeric_limits<double>::infinity();
          for (const auto& derivative : jx) {
            Sum forward;
            forward.add(derivative, w);
            best = std::fmin(best, static_cast<double>(std::abs(forward.value - backward.value) /
                                                       backward.magnitude));
          }
          REQUIRE(best <= tolerance::gradient_check);
        }
      });
}

TEST_CASE("law 11: <v, dv> = <y, dy>, for y is linear in v", "[laws][adjoint]") {
  for_each_case({}, 1, anything, [](const Variant& variant, const Case& random) {
    const Outcome<double> found = run(variant, random);
    const CallMagnitudes magnitude = magnitudes(variant, random, found.y);
    Sum forward, backward, rounding;
    forward.add(found.y, random.dy);
    backward.add(random.v, found.gradients.v);
    rounding.add(magnitude.y, random.dy);
    rounding.add(random.v, magnitude.gradients.v);
    INFO("<y, dy> = " << forward.value << ", <v, dv> = " << backward.value);
    REQUIRE(std::abs(forward.value - backward.value) <=
            tolerance::roundings * tolerance::unit_roundoff<double> * rounding.magnitude);
  });
}

TEST_CASE("law 11: <mix, dmix> = <y, dy> without a normalizer, 0 with one and no epsilon",
          "[laws][adjoint]") {
  for_each_case({.no_epsilon = true}, 1, anything, [](const Variant& variant, const Case& random) {
    const Outcome<double> found = run(variant, random);
    const CallMagnitudes magnitude = magnitudes(variant, random, found.y);
    Sum forward, backward, rounding;
    if (!variant.policies().normalizes()) forward.add(found.y, random.dy);
    backward.add(random.mix, found.gradients.mix);
    rounding.add(magnitude.y, random.dy);
    rounding.add(random.mix, magnitude.gradients.mix);
    INFO("<y, dy> = " << forward.value << ", <mix, dmix> = " << backward.value);
    REQUIRE(std::abs(forward.value - backward.value) <=
            tolerance::roundings * tolerance::unit_roundoff<double> * rounding.magnitude);
  });
}
