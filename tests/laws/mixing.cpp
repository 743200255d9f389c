// SPDX-License-Identifier: MIT
// What special mixing matrices make of MHLA, and what normalizing makes of the weights.
#include <algorithm>

#include "tests/laws/harness/blocks.hpp"
#include "tests/laws/harness/for_each_case.hpp"
#include "tests/laws/harness/run.hpp"

namespace {

using namespace laws;

void fill(auto& tensor, double value) {
  std::fill(tensor.elements().begin(), tensor.elements().end(), value);
}

bool divides_by_weights(const Policies& policies) { return policies.normalizes(); }

}  // namespace

// ---- Law 1: linear attention as a special case -------------------------------------------------

TEST_CASE("law 1: all-ones mixing is linear attention, rotated or not", "[laws][mixing]") {
  for_each_case(
      {}, 1, [](const Policies& policies) { return !policies.mixes_products(); },
      [](const Variant& variant, Case random) {
        fill(random.mix, 1);
        const Outcome<Wide> linear = expected(variant, random, Formula::linear);
        require_near(run(variant, random), linear, magnitudes(variant, random, linear.y), 1,
                     Compare::all_but_mix);
      });
}

TEST_CASE("law 1: one block is linear attention, with every normalizer", "[laws][mixing]") {
  for_each_case({}, 1, anything, [](const Variant& variant, Case random) {
    for (Grid* grid : {&random.setting.queries, &random.setting.keys})
      std::copy_n(grid->extent, 3, grid->block);
    random.mix = HostTensor<double, 3>(random.shape.mix_heads, 1, 1);
    fill(random.mix, 1);
    const Outcome<Wide> linear = expected(variant, random, Formula::linear);
    require_near(run(variant, random), linear, magnitudes(variant, random, linear.y), 1,
                 Compare::all_but_mix);
  });
}

// ---- Law 2: rows that sum to one ---------------------------------------------------------------

TEST_CASE("law 2: constant values give that constant, and nothing but dv", "[laws][mixing]") {
  const auto stochastic = [](const Policies& policies) {
    return policies.normalizer == Normalizer::mixed_key_sum && !policies.rotates() &&
           policies.map != Map::identity;
  };
  for_each_case({.no_epsilon = true}, 3, stochastic, [](const Variant& variant, Case random) {
    fill(random.v, 1.75);
    random.setting.nu =
        3;  // one product alone may be 0 in every feature of a row, which has no sum
    const Outcome<double> found = run(variant, random);
    // A row of Dpfp's features may be 0 in every product with the few keys that an early token
    // sees: it has no sum, and y is 0.
    const HostTensor<Wide, 4> oracle = expected(variant, random).y;
    HostTensor<double, 4> constant = found.y;
    for (std::size_t i = 0; i < constant.elements().size(); ++i)
      constant.elements()[i] = oracle.elements()[i] == 0 ? 0 : 1.75;
    const CallMagnitudes magnitude = magnitudes(variant, random, constant);
    const auto zero = zero_gradients<double>(random.operands());
    require_near("y", found.y, constant, magnitude.y, 1);
    require_near("dq", found.gradients.q, zero.q, magnitude.gradients.q, 1);
    require_near("dk", found.gradients.k, zero.k, magnitude.gradients.k, 1);
    require_near("dmix", found.gradients.mix, zero.mix, magnitude.gradients.mix, 1);

    // The same of the gradient: each dy is shared out among the keys, and none of it is lost.
    const Shape& s = random.shape;
    HostTensor<double, 3> received(s.batch, s.kv_heads, s.value_dim);
    HostTensor<Wide, 3> given(s.batch, s.kv_heads, s.value_dim);
    HostTensor<double, 3> terms(s.batch, s.kv_heads, s.value_dim);
    for (Index n = 0; n < s.batch; ++n)
      for (Index c = 0; c < s.value_dim; ++c) {
        for (Index h = 0; h < s.heads; ++h)
          for (Index t = 0; t < s.query_tokens; ++t)
            if (constant(n, h, t, c) != 0)
              given(n, h / s.group_size(), c) += static_cast<Wide>(random.dy(n, h, t, c));
        for (Index h = 0; h < s.kv_heads; ++h)
          for (Index j = 0; j < s.key_tokens; ++j) {
            received(n, h, c) += found.gradients.v(n, h, j, c);
            terms(n, h, c) += magnitude.gradients.v(n, h, j, c);
          }
      }
    require_near("dv summed over keys", received, given, terms, 1);
  });
}

// ---- Law 3: homogeneous in everything ----------------------------------------------------------
// Powers of two change no bit of any mantissa, so these hold to the bit.

TEST_CASE("law 3: without epsilon, the scale of mix and of phi(q) cancels", "[laws][mixing]") {
  for_each_case({.no_epsilon = true}, 1, divides_by_weights,
                [](const Variant& variant, const Case& random) {
                  const Outcome<double> once = run(variant, random);
                  Case scaled = random;
                  scaled.mix = times(8, random.mix);
                  scaled.setting.scale *= 0.25;
                  const Outcome<double> found = run(variant, scaled);
                  require_same_bits({found.y, times(1, found.gradients, 8)}, once);

                  // And with any factor, to rounding.
                  scaled.mix = times(3, random.mix);
                  require_near("y", output_of(variant, scaled), once.y,
                               output_magnitude(variant, random, once.y), 2);
                });
}

TEST_CASE("law 3: without a normalizer, y is linear in mix and in the scale", "[laws][mixing]") {
  const auto unnormalized = [](const Policies& policies) { return !policies.normalizes(); };
  for_each_case({}, 2, unnormalized, [](const Variant& variant, const Case& random) {
    const Outcome<double> once = run(variant, random);
    Case scaled = random;
    scaled.mix = times(8, random.mix);
    scaled.setting.scale *= 0.25;
    const Outcome<double> found = run(variant, scaled);
    require_same_bits(found, {times(2, once.y), times(2, once.gradients, 0.25)});
  });
}
