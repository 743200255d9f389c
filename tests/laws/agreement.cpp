// SPDX-License-Identifier: MIT
// The CPU backend against the quadratic oracle in long double, over the product of policies: in
// float, in double, and in long double, which shows that no double is hidden on the way (law 12).
#include <limits>
#include <mhla/testing/comparison.hpp>

#include "tests/laws/harness/for_each_case.hpp"
#include "tests/laws/harness/run.hpp"

namespace {

using namespace laws;

/// Where numerators may cancel while the denominator does not follow, or the denominator itself may
/// cancel, an RMS over all rows says nothing, and only the rows' own bounds count.
bool signed_under_normalizer(const Policies& policies) {
  return policies.normalizes() && (policies.rotates() || policies.map == Map::identity);
}

template <class T>
void require_agreement(const Variant& variant, const Case& random, const Outcome<Wide>& wanted,
                       const CallMagnitudes& magnitude) {
  INFO("in a type of " << std::numeric_limits<T>::digits << " bits");
  const Outcome<T> found = run<T>(variant, random);
  require_near(found, wanted, magnitude, 1);
  if (signed_under_normalizer(variant.policies())) return;
  const auto rms_ratio = [](const auto& a, const auto& b) {
    return mhla::testing::compare(a.view(), b.view()).rms_ratio;
  };
  REQUIRE(rms_ratio(found.y, wanted.y) <= tolerance::forward_rms<T>);
  REQUIRE(rms_ratio(found.gradients.q, wanted.gradients.q) <= tolerance::gradient_rms<T>);
  REQUIRE(rms_ratio(found.gradients.k, wanted.gradients.k) <= tolerance::gradient_rms<T>);
  REQUIRE(rms_ratio(found.gradients.v, wanted.gradients.v) <= tolerance::gradient_rms<T>);
  REQUIRE(rms_ratio(found.gradients.mix, wanted.gradients.mix) <= tolerance::gradient_rms<T>);
}

}  // namespace

TEST_CASE("forward and backward agree with the oracle in float, double and long double",
          "[laws][oracle]") {
  for_each_case({}, 1, anything, [](const Variant& variant, const Case& random) {
    const Outcome<Wide> wanted = expected(variant, random);
    const CallMagnitudes magnitude = magnitudes(variant, random, wanted.y);
    require_agreement<float>(variant, random, wanted, magnitude);
    require_agreement<double>(variant, random, wanted, magnitude);
    require_agreement<long double>(variant, random, wanted, magnitude);
  });
}
