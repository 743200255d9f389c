// SPDX-License-Identifier: MIT
// A backend against the quadratic oracle in long double, over the product of policies: in float, in
// double, and on the CPU in long double, which shows that no double is hidden on the way (law 12).
#include <algorithm>
#include <cmath>
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

template <class T, int Rank>
double rms(const HostTensor<T, Rank>& x) {
  Wide sum = 0;
  for (const T element : x.elements())
    sum += static_cast<Wide>(element) * static_cast<Wide>(element);
  return static_cast<double>(std::sqrt(sum));
}

/// The RMS of the error over that of what is wanted; but where terms a thousand times as large
/// cancel, over a thousandth of theirs: dmix adds up to nothing but what epsilon leaves, and so
/// does dq of a causal query that sees one key.
template <class T, int Rank>
double rms_ratio(const HostTensor<T, Rank>& found, const HostTensor<Wide, Rank>& wanted,
                 const HostTensor<double, Rank>& magnitude) {
  HostTensor<Wide, Rank> error = wanted;
  for (std::size_t i = 0; i < error.elements().size(); ++i)
    error.elements()[i] -= static_cast<Wide>(found.elements()[i]);
  return rms(error) / std::max(rms(wanted), rms(magnitude) / 1024);
}

template <class T>
void require_agreement(const Variant& variant, const Case& random, const Outcome<Wide>& wanted,
                       const CallMagnitudes& magnitude) {
  if (!backend_in<T>(variant).compiled()) return;
  INFO("in a type of " << std::numeric_limits<T>::digits << " bits");
  const Outcome<T> found = run<T>(variant, random);
  require_near(found, wanted, magnitude, 1);
  if (signed_under_normalizer(variant.policies())) return;
  REQUIRE(mhla::testing::compare(found.y.view(), wanted.y.view()).rms_ratio <=
          tolerance::forward_rms<T>);
  const auto& size = magnitude.gradients;
  constexpr double bound = tolerance::gradient_rms<T>;
  REQUIRE(rms_ratio(found.gradients.q, wanted.gradients.q, size.q) <= bound);
  REQUIRE(rms_ratio(found.gradients.k, wanted.gradients.k, size.k) <= bound);
  REQUIRE(rms_ratio(found.gradients.v, wanted.gradients.v, size.v) <= bound);
  REQUIRE(rms_ratio(found.gradients.mix, wanted.gradients.mix, size.mix) <= bound);
}

}  // namespace

TEST_CASE("forward and backward agree with the oracle in float, double and long double",
          "[laws][oracle]") {
  for_each_case({}, 1, anything, [](const Variant& variant, Case random) {
    const Outcome<Wide> wanted = expected(variant, random);
    const CallMagnitudes magnitude = magnitudes(variant, random, wanted.y);
    for (const Path path : variant.paths()) {
      random.setting.path = path;
      INFO("by path " << static_cast<int>(path));
      require_agreement<double>(variant, random, wanted, magnitude);
      require_agreement<float>(variant, random, wanted, magnitude);
      require_agreement<long double>(variant, random, wanted, magnitude);
    }
  });
}
