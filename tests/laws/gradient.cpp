// SPDX-License-Identifier: MIT
// Every gradient is the derivative of the forward pass, over the product of policies in double: by
// central differences of fourth order, of all inputs at once and of each alone.
#include <mhla/testing/gradient_check.hpp>

#include "tests/laws/harness/for_each_case.hpp"
#include "tests/laws/harness/run.hpp"

namespace {

using namespace laws;
using mhla::testing::differentiate;

}  // namespace

TEST_CASE("dq, dk, dv and dmix are the derivatives of the forward pass", "[laws][gradient]") {
  for_each_case(
      {.small = true, .smooth = true}, 1, anything, [](const Variant& variant, Case random) {
        const auto loss = [&] {
          const HostTensor<double, 4> y = output_of(variant, random);
          Wide sum = 0;
          for (std::size_t i = 0; i < y.elements().size(); ++i)
            sum += static_cast<Wide>(y.elements()[i]) * static_cast<Wide>(random.dy.elements()[i]);
          return sum;
        };
        const auto require_derivative = [&](const char* name, const auto&... operands) {
          const auto check = mhla::testing::check_gradient(loss, random.seed, 1, operands...);
          INFO(name << ": " << check);
          REQUIRE(check.error <= tolerance::gradient_check);
        };
        const Gradients<double> grad =
            gradients_of(variant, random.setting, random.operands(), random.dy);
        const auto q = differentiate(random.q, grad.q);
        const auto k = differentiate(random.k, grad.k);
        const auto v = differentiate(random.v, grad.v);
        const auto mix = differentiate(random.mix, grad.mix);
        require_derivative("all", q, k, v, mix);
        require_derivative("dq", q);
        require_derivative("dk", k);
        require_derivative("dv", v);
        require_derivative("dmix", mix);
      });
}
