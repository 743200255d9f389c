// SPDX-License-Identifier: MIT
// Law 6: nothing reaches an earlier token from a later one: under Causal from any later token,
// under BlockCausal from any later block. To the bit, whatever the later tokens hold.
#include <limits>

#include "tests/laws/harness/blocks.hpp"
#include "tests/laws/harness/for_each_case.hpp"
#include "tests/laws/harness/run.hpp"

namespace {

using namespace laws;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

bool sees_the_past_only(const Policies& policies) { return !policies.bidirectional(); }

/// A token that none before it may know of: any under Causal, the first of a block under
/// BlockCausal.
Index random_cut(const Variant& variant, const Case& random, Draw& draw) {
  const Index token = draw.between(0, random.shape.query_tokens - 1);
  if (variant.policies().causality == Causality::causal) return token;
  return token - token % random.setting.queries.block[2];
}

/// f(element) for every element of tokens [begin, end).
template <class F>
void for_each_of_tokens(HostTensor<double, 4>& x, Index begin, Index end, F&& f) {
  for (Index n = 0; n < x.extent(0); ++n)
    for (Index h = 0; h < x.extent(1); ++h)
      for (Index t = begin; t < end; ++t)
        for (Index c = 0; c < x.extent(3); ++c) f(x(n, h, t, c));
}

void fill(HostTensor<double, 4>& x, Index begin, Index end, double value) {
  for_each_of_tokens(x, begin, end, [&](double& element) { element = value; });
}

/// Tokens [0, end).
HostTensor<double, 4> head_of(const HostTensor<double, 4>& x, Index end) {
  return taken(x, same_order(end));
}

/// f(element) for every entry of mix above the diagonal.
template <class F>
void for_each_above_diagonal(HostTensor<double, 3>& mix, F&& f) {
  for (Index h = 0; h < mix.extent(0); ++h)
    for (Index i = 0; i < mix.extent(1); ++i)
      for (Index b = i + 1; b < mix.extent(2); ++b) f(mix(h, i, b));
}

}  // namespace

TEST_CASE("law 6: outputs do not know of later tokens, be they NaN", "[laws][causality]") {
  for_each_case({}, 3, sees_the_past_only, [](const Variant& variant, const Case& random) {
    Draw draw(random.seed);
    const Index cut = random_cut(variant, random, draw);
    INFO("cut before token " << cut);
    Case other = random;
    for (HostTensor<double, 4>* x : {&other.q, &other.k, &other.v})
      fill(*x, cut, x->extent(2), not_a_number);
    REQUIRE(same_bits(head_of(output_of(variant, other), cut),
                      head_of(output_of(variant, random), cut)));
  });
}

TEST_CASE("law 6: gradients do not reach later tokens", "[laws][causality]") {
  for_each_case({}, 2, sees_the_past_only, [](const Variant& variant, Case random) {
    Draw draw(random.seed);
    const Index cut = random_cut(variant, random, draw);
    const Index tokens = random.shape.query_tokens;
    INFO("cut before token " << cut);
    fill(random.dy, cut, tokens, 0);
    Gradients<double> grad =
        gradients_of(variant, random.setting, random.operands(), random.dy.view());
    for (HostTensor<double, 4>* g : {&grad.q, &grad.k, &grad.v})
      for_each_of_tokens(*g, cut, tokens, [](double element) { REQUIRE(element == 0); });

    // Nor do later tokens reach them.
    Case other = random;
    for (HostTensor<double, 4>* x : {&other.q, &other.k, &other.v})
      for_each_of_tokens(*x, cut, tokens, [&](double& element) {
        element = static_cast<double>(draw.between(1, 8)) / 4;
      });
    const Gradients<double> found =
        gradients_of(variant, other.setting, other.operands(), other.dy.view());
    REQUIRE(same_bits(head_of(found.q, cut), head_of(grad.q, cut)));
    REQUIRE(same_bits(head_of(found.k, cut), head_of(grad.k, cut)));
    REQUIRE(same_bits(head_of(found.v, cut), head_of(grad.v, cut)));
    REQUIRE(same_bits(found.mix, grad.mix));
  });
}

TEST_CASE("law 6: mix above the diagonal is not read, and has gradient 0", "[laws][causality]") {
  for_each_case({}, 2, sees_the_past_only, [](const Variant& variant, const Case& random) {
    Case other = random;
    for_each_above_diagonal(other.mix, [](double& entry) { entry = not_a_number; });
    Outcome<double> found = run(variant, other);
    require_same_bits(found, run(variant, random));
    for_each_above_diagonal(found.gradients.mix, [](double entry) { REQUIRE(entry == 0); });

    // Accumulating leaves there what was there.
    auto grad = zero_gradients<double>(other.operands());
    for_each_above_diagonal(grad.mix, [](double& entry) { entry = 7; });
    variant.in_double().backward(other.setting, other.operands(), other.dy.view(), grad.views(),
                                 Update::accumulate);
    for_each_above_diagonal(grad.mix, [](double entry) { REQUIRE(entry == 7); });
  });
}
