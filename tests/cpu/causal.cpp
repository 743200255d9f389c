// SPDX-License-Identifier: MIT
// What holds for every call, of the causal variants: any subset of the gradients, to replace or to
// add to, from summaries saved or computed again; any executor; extents of 0; denominators of 0;
// blocks of several tiles and many blocks; and no allocation.
#include <mhla/cpu/pipeline.hpp>
#include <string>

#include "tests/cpu/call.hpp"
#include "tests/cpu/executors.hpp"
#include "tests/support/allocation_counter.hpp"

namespace {

using namespace call;
using executors::ShuffledExecutor;
using executors::ThreadExecutor;
using namespace mhla;

template <class Mode, class Normalizer>
using Variant = Attention<Relu, Blocks1D, Mode, Normalizer>;

#define CAUSAL_VARIANTS                                            \
  (Variant<Causal, MixedKeySum>), (Variant<Causal, Unnormalized>), \
      (Variant<BlockCausal, MixedKeySum>), (Variant<BlockCausal, Unnormalized>)

}  // namespace

TEMPLATE_TEST_CASE("causal: every subset of the gradients, replaced and added to", "[cpu]",
                   CAUSAL_VARIANTS) {
  const auto attention = by_each_path(TestType{.blocks = {.block = 5}});
  const Operands<double> x = operands<double>(
      attention, GENERATE(Shape{3, 6, 2, 18, 18, 5, 3}, Shape{3, 6, 2, 18, 18, 5, 3, 6}));
  const bool from_saved = GENERATE(false, true);
  ForwardState<double> state;
  call::forward(attention, x, SerialExecutor{}, &state);
  const Gradients<double> all = call::backward(attention, x);
  for (int subset = 0; subset < 16; ++subset)
    for (const Update update : {Update::overwrite, Update::accumulate}) {
      CAPTURE(subset, update);
      Gradients<double> wanted(x);
      Gradients<double> found(x);
      GradientViews<double> views = found.views();
      const auto expect = [&](bool asked, auto& view, auto& expected, const auto& gradient) {
        if (!asked) {
          view = skip;
          return;
        }
        for (std::size_t i = 0; i < expected.elements().size(); ++i)
          expected.elements()[i] = gradient.elements()[i] +
                                   (update == Update::accumulate ? expected.elements()[i] : 0.0);
      };
      expect((subset & 1) != 0, views.query, wanted.query, all.query);
      expect((subset & 2) != 0, views.key, wanted.key, all.key);
      expect((subset & 4) != 0, views.value, wanted.value, all.value);
      expect((subset & 8) != 0, views.mix, wanted.mix, all.mix);
      call::backward_to(views, update, attention, x, SerialExecutor{},
                        from_saved ? &state : nullptr);
      CHECK(found.query.elements() == wanted.query.elements());
      CHECK(found.key.elements() == wanted.key.elements());
      CHECK(found.value.elements() == wanted.value.elements());
      CHECK(found.mix.elements() == wanted.mix.elements());
    }
}

TEMPLATE_TEST_CASE("causal: the same bits on every executor", "[cpu]", CAUSAL_VARIANTS) {
  // Several groups of rows; blocks of several tiles; one kv head, so that its blocks are shared
  // out.
  const auto [block, shape] = GENERATE(std::pair{Index{3}, Shape{2, 6, 2, 203, 203, 5, 7}},
                                       std::pair{Index{150}, Shape{1, 4, 2, 400, 400, 5, 7, 4}},
                                       std::pair{Index{4}, Shape{1, 3, 1, 137, 137, 6, 2}},
                                       std::pair{Index{2}, Shape{1, 1, 1, 67, 67, 16, 72}},
                                       std::pair{Index{2}, Shape{1, 3, 3, 41, 41, 16, 40}});
  const auto attention = by_each_path(TestType{.blocks = {.block = block}});
  const auto x = operands<double>(attention, shape);
  const auto y = call::forward(attention, x);
  auto gradients = call::backward(attention, x);
  const auto check = [&](const auto& executor) {
    CHECK(bitwise_equal(y.view(), call::forward(attention, x, executor).view()));
    auto others = call::backward(attention, x, executor);
    check_same_bits(gradients, others);
  };
  for (const Index num_slots : {2, 7, 40}) check(ShuffledExecutor{num_slots, 5});
  for (const Index threads : {1, 2, 3, 8}) check(ThreadExecutor{threads});
}

TEMPLATE_TEST_CASE("causal: one block, blocks of one token, blocks of several tiles", "[cpu]",
                   CAUSAL_VARIANTS) {
  const Index block = GENERATE(1, 13, 63, 64, 65, 130, 290);
  const Index tokens = block == 1 ? 13 : block == 130 ? 390 : block == 290 ? 290 : 3 * block - 1;
  CAPTURE(block, tokens);
  auto attention = by_each_path(TestType{.blocks = {.block = block}});
  // With one block dmix nearly cancels but for the normalizer's epsilon.
  if constexpr (requires { attention.normalizer.epsilon; })
    attention.normalizer.epsilon = static_cast<double>(tokens);
  check_against_oracle(attention, operands<double>(attention, {1, 2, 1, tokens, tokens, 5, 7}));
}

TEMPLATE_TEST_CASE("causal: a query that sees no positive feature has output 0 and no gradient",
                   "[cpu]", (Variant<Causal, MixedKeySum>), (Variant<BlockCausal, MixedKeySum>)) {
  const auto attention = by_each_path(TestType{
      .feature_map = {.epsilon = 0}, .blocks = {.block = 4}, .normalizer = {.epsilon = 0}});
  auto x = operands<double>(attention, {2, 4, 2, 14, 14, 5, 7});
  for (Index c = 0; c < 5; ++c) {
    x.q(1, 2, 6, c) = -1;                                // a query of no features
    for (Index t = 0; t < 4; ++t) x.k(0, 1, t, c) = -1;  // no key before the second block
  }
  const auto y = call::forward(attention, x);
  const auto gradients = call::backward(attention, x);
  for (Index c = 0; c < 7; ++c) {
    CHECK(y(1, 2, 6, c) == 0);
    for (Index t = 0; t < 4; ++t) CHECK(y(0, 2, t, c) == 0);
  }
  for (Index c = 0; c < 5; ++c) CHECK(gradients.query(1, 2, 6, c) == 0);
  check_against_oracle(attention, x);
}

TEST_CASE("causal: query and key side must be alike", "[cpu]") {
  const Variant<Causal, MixedKeySum> other_tokens{.blocks = {.block = 4}};
  CHECK_THROWS_AS(
      call::forward(other_tokens, operands<double>(other_tokens, {1, 1, 1, 8, 9, 2, 3})),
      mhla::ShapeError);
  const Variant<BlockCausal, MixedKeySum> other_blocks{.blocks = {.block = 4},
                                                       .key_blocks = {.block = 2}};
  CHECK_THROWS_AS(
      call::forward(other_blocks, operands<double>(other_blocks, {1, 1, 1, 8, 8, 2, 3})),
      mhla::ShapeError);
}

// Of the last token, which sees all as if it were alone.
TEST_CASE("causal: the error of a block does not grow with its tokens", "[cpu][figures]") {
  const Index tokens = GENERATE(4096, 400000);
  CAPTURE(tokens);
  const Variant<Causal, MixedKeySum> attention{.blocks = {.block = tokens}};
  const auto x = operands<double>(attention, {1, 1, 1, tokens, tokens, 5, 3});
  const auto y = call::forward(attention, x);
  const auto last_of = [&](const auto& tensor) {
    mhla::testing::HostTensor<double, 4> last(1, 1, 1, tensor.extent(3));
    for (Index c = 0; c < tensor.extent(3); ++c) last(0, 0, 0, c) = tensor(0, 0, tokens - 1, c);
    return last;
  };
  const Operands<double> last{last_of(x.q), x.k, x.v, x.mix, last_of(x.dy)};
  const Variant<mhla::Bidirectional, MixedKeySum> alone{.blocks = {.block = 1},
                                                        .key_blocks = {.block = tokens}};
  call::check_close("y", last_of(y),
                    call::oracle_forward(alone, call::converted<long double>(last)),
                    tolerance::forward_rms<double>, tolerance::forward_max<double>);
}
