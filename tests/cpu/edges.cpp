// SPDX-License-Identifier: MIT
// Shapes at the edge of what is legal, each against the oracle: ragged grids, one block, blocks of
// one token, blocks longer than a tile, nothing at all along an axis, a mixing matrix larger than
// the layout, and denominators of 0.
#include <algorithm>
#include <cstdlib>
#include <mhla/cpu/pipeline.hpp>
#include <string>

#include "tests/cpu/call.hpp"
#include "tests/support/floating_point.hpp"

namespace {

using namespace call;
using namespace mhla;

template <class Geometry, class Normalizer = MixedKeySum>
using Variant = Attention<Relu, Geometry, Bidirectional, Normalizer>;

// With one block, or few, dmix nearly cancels but for the normalizer's epsilon: one as large as the
// denominators leaves something to see.
double large_epsilon(Index tokens) { return static_cast<double>(tokens); }

#if !defined(MHLA_TEST_CUDA)
// Sums of 64 terms, which every instruction set adds in an order of its own.
call::HostTensor<float, 4> result_of_a_call() {
  const Variant<Blocks1D> attention{.blocks = {.block = 16}};
  return call::forward(attention, operands<float>(attention, {1, 1, 1, 64, 64, 64, 64}));
}

const call::HostTensor<float, 4>* before_main = nullptr;
__attribute__((constructor(101))) void call_before_main() {
  before_main = new call::HostTensor<float, 4>(result_of_a_call());
}
__attribute__((destructor(101))) void call_after_main() {
  if (!bitwise_equal(result_of_a_call().view(), before_main->view())) std::abort();
  delete before_main;
}
#endif

// Divisions by 0 end the program where exceptions trap; on a machine without traps, f() alone.
auto trapping(const auto& f) {
#if !defined(MHLA_TEST_CUDA)
  const floating_point::Scope scope(floating_point::Setting::trapping);
#endif
  return f();
}

bool is_zero(const auto& tensor) {
  for (const double x : tensor.elements())
    if (x != 0) return false;
  return true;
}

}  // namespace

#if !defined(MHLA_TEST_CUDA)
TEST_CASE("edges: a call before main has the bits of one after it", "[cpu]") {
  REQUIRE(before_main != nullptr);  // call_after_main() makes the other comparison
  CHECK(bitwise_equal(before_main->view(), result_of_a_call().view()));
}
#endif

TEST_CASE("edges: ragged sequences, images and videos", "[cpu]") {
  for (const Index tokens : {9, 10, 11, 257})
    check_against_oracle(Variant<Blocks1D>{.blocks = {.block = 4}},
                         operands<double>(Variant<Blocks1D>{.blocks = {.block = 4}},
                                          Shape{2, 2, 1, tokens, tokens, 5, 7}));
  for (const Index rows : {5, 6, 7})
    for (const Index columns : {4, 7, 13}) {
      CAPTURE(rows, columns);
      const Index tokens = rows * columns;
      const Variant<Blocks2D> image{.blocks = {.grid = {rows, columns}, .block = {3, 4}}};
      check_against_oracle(image, operands<double>(image, {2, 2, 1, tokens, tokens, 5, 7}));
      const Variant<Blocks2D, Unnormalized> bare{
          .blocks = {.grid = {rows, columns}, .block = {2, 5}}};
      check_against_oracle(bare, operands<double>(bare, {1, 2, 2, tokens, tokens, 5, 7}));
    }
  for (const Index frames : {3, 4, 5}) {
    CAPTURE(frames);
    const Index tokens = frames * 35;
    const Variant<Blocks3D> video{.blocks = {.grid = {frames, 7, 5}, .block = {2, 3, 4}}};
    check_against_oracle(video, operands<double>(video, {1, 2, 1, tokens, tokens, 5, 7}));
  }
}

TEST_CASE("edges: one block, blocks of one token, blocks longer than a tile", "[cpu]") {
#if defined(MHLA_TEST_ALL_CASES)
  const Index block = GENERATE(1, 13, 40, 130, 290);
#else
  const Index block = GENERATE(1, 13, 130);
#endif
  const Index tokens = block == 1 ? 13 : block == 130 ? 390 : block;
  CAPTURE(block, tokens);
  const Shape shape{1, 2, 1, tokens, tokens, 5, 7};
  const Variant<Blocks1D> mixed_sum{.blocks = {.block = block},
                                    .normalizer = {.epsilon = large_epsilon(tokens)}};
  const Variant<Blocks1D, MixedProduct> mixed_product{
      .blocks = {.block = block}, .normalizer = {.epsilon = large_epsilon(tokens)}};
  const Variant<Blocks1D, Unnormalized> bare{.blocks = {.block = block}};
  check_against_oracle(mixed_sum, operands<double>(mixed_sum, shape));
  check_against_oracle(mixed_product, operands<double>(mixed_product, shape));
  check_against_oracle(bare, operands<double>(bare, shape));
}

#if defined(MHLA_TEST_ALL_CASES)
// Relu's epsilon is lost alike whenever it is added to a sum of nearly the same size.
TEST_CASE("edges: errors do not grow with the tokens of a block", "[cpu][figures]") {
#if defined(MHLA_FULL_PRODUCT)
  const Index tokens = GENERATE(4096, 400000);
#else
  const Index tokens = GENERATE(4096, 100000);
#endif
  CAPTURE(tokens);
  Variant<Blocks1D> attention{.blocks = {.block = 3}, .key_blocks = {.block = tokens}};
  const auto x = operands<double>(attention, {1, 1, 1, 3, tokens, 5, 3});
  const auto wide = call::converted<long double>(x);
  constexpr double rms = tolerance::forward_rms<double>;
  constexpr double max = tolerance::forward_max<double>;
  call::check_close("y", call::forward(attention, x), call::oracle_forward(attention, wide), rms,
                    max);
  const auto gradients = call::backward(attention, x);
  const auto expected = call::oracle_backward(attention, wide);
  call::check_close("dq", gradients.query, expected.query, rms, 2 * max);
  call::check_close("dk", gradients.key, expected.key, rms, 2 * max);
  call::check_close("dv", gradients.value, expected.value, rms, 2 * max);
  attention.normalizer.epsilon = large_epsilon(tokens);
  check_against_oracle(attention, x);
}

TEST_CASE("edges: windows larger than a tile", "[cpu]") {
  const Variant<Blocks2D> image{.blocks = {.grid = {14, 30}, .block = {11, 19}},
                                .normalizer = {.epsilon = large_epsilon(420)}};
  check_against_oracle(image, operands<double>(image, {1, 1, 1, 420, 420, 3, 4}));
  const Variant<Blocks2D, MixedProduct> even{.blocks = {.grid = {22, 19}, .block = {11, 19}},
                                             .normalizer = {.epsilon = large_epsilon(418)}};
  check_against_oracle(even, operands<double>(even, {1, 2, 1, 418, 418, 3, 4}));
}
#endif

TEST_CASE("edges: a block larger than the grid is one block", "[cpu]") {
  const Variant<Blocks2D> larger{.blocks = {.grid = {3, 5}, .block = {8, 100}}};
  const Variant<Blocks2D> exact{.blocks = {.grid = {3, 5}, .block = {3, 5}}};
  const auto x = operands<double>(larger, {2, 2, 1, 15, 15, 5, 7});
  CHECK(bitwise_equal(call::forward(larger, x).view(), call::forward(exact, x).view()));
}

// Along one axis after the other there is nothing. The mixing matrix keeps its extents: it is
// larger than a layout of no blocks.
TEMPLATE_TEST_CASE("edges: extents of 0", "[cpu]", MixedKeySum, MixedProduct, Unnormalized) {
  const auto attention = call::by_each_path(
      Variant<Blocks1D, TestType>{.blocks = {.block = 4}, .mixing = {.leading_corner = true}});
  constexpr bool equal_sides = std::is_same_v<TestType, MixedProduct>;
  Shape shape{2, 4, 2, 12, 12, 5, 7, 1, 4, 3};
  const std::string axis =
      GENERATE(as<std::string>(), "batch", "heads", "heads, a matrix each", "kv_heads",
               "query tokens", "key tokens", "tokens", "key_dim", "value_dim", "everything");
  CAPTURE(axis);
  if (axis == "batch") shape.batch = 0;
  if (axis == "heads") shape.heads = 0;
  if (axis == "heads, a matrix each") shape.heads = shape.mix_heads = 0;
  if (axis == "kv_heads") shape.heads = shape.kv_heads = 0;
  if (axis == "query tokens" || axis == "tokens") shape.query_tokens = 0;
  if (axis == "key tokens" || axis == "tokens") shape.key_tokens = 0;
  if (axis == "key_dim") shape.key_dim = 0;
  if (axis == "value_dim") shape.value_dim = 0;
  if (axis == "everything") shape = {0, 0, 0, 0, 0, 0, 0, 1, 0, 0};
  const auto x = operands<double>(attention, shape);
  REQUIRE(x.shape() == shape);
  if (equal_sides && (axis == "query tokens" || axis == "key tokens")) {
    CHECK_THROWS_AS(call::forward(attention, x), mhla::ShapeError);
    return;
  }

  // Either y is empty or no key contributes.
  const auto y = call::forward(attention, x);
  CHECK(is_zero(y));
  const auto gradients = call::backward(attention, x);
  CHECK(is_zero(gradients.query));
  CHECK(is_zero(gradients.key));
  CHECK(is_zero(gradients.value));
  CHECK(is_zero(gradients.mix));

  call::Gradients<double> kept(x);  // filled with the operands
  call::backward_to(kept.views(), Update::accumulate, attention, x);
  CHECK(bitwise_equal(kept.query.view(), x.q.view()));
  CHECK(bitwise_equal(kept.key.view(), x.k.view()));
  CHECK(bitwise_equal(kept.value.view(), x.v.view()));
  CHECK(bitwise_equal(kept.mix.view(), x.mix.view()));
}

TEST_CASE("edges: of a larger mixing matrix the leading corner is used", "[cpu]") {
  const Index mix_heads = GENERATE(1, 4);
  const Variant<Blocks1D> attention{
      .blocks = {.block = 4}, .key_blocks = {.block = 5}, .mixing = {.leading_corner = true}};
  const Shape larger{2, 4, 2, 14, 14, 5, 7, mix_heads, 6, 8};  // 4 x 3 blocks
  const auto x = operands<double>(attention, larger);
  auto corner = x;
  corner.mix = call::HostTensor<double, 3>(mix_heads, 4, 3);
  for (Index h = 0; h < mix_heads; ++h)
    for (Index i = 0; i < 4; ++i)
      for (Index b = 0; b < 3; ++b) corner.mix(h, i, b) = x.mix(h, i, b);

  CHECK(bitwise_equal(call::forward(attention, x).view(), call::forward(attention, corner).view()));
  auto gradients = call::backward(attention, x);
  auto expected = call::backward(attention, corner);
  call::Gradients<double> sums(x);
  call::backward_to(sums.views(), Update::accumulate, attention, x);
  for (Index h = 0; h < mix_heads; ++h)
    for (Index i = 0; i < 6; ++i)
      for (Index b = 0; b < 8; ++b) {
        CAPTURE(h, i, b);
        const bool inside = i < 4 && b < 3;
        CHECK(gradients.mix(h, i, b) == (inside ? expected.mix(h, i, b) : 0));
        CHECK(sums.mix(h, i, b) ==
              (inside ? x.mix(h, i, b) + expected.mix(h, i, b) : x.mix(h, i, b)));
      }
  gradients.mix = expected.mix;
  check_same_bits(gradients, expected);
}

// No feature is above 0, so the denominator is exactly 0.
TEMPLATE_TEST_CASE("edges: a query without a positive feature has output 0 and no gradient",
                   "[cpu]", MixedKeySum, MixedProduct) {
  const auto attention = call::by_each_path(Variant<Blocks1D, TestType>{
      .feature_map = {.epsilon = 0}, .blocks = {.block = 4}, .normalizer = {.epsilon = 0}});
  auto x = operands<double>(attention, {2, 4, 2, 12, 12, 5, 7});
  const bool all = GENERATE(false, true);
  // Under MixedProduct a denominator is made of the queries at one offset of every block.
  const auto vanishes = [&](Index t) { return all || t % 4 == 1; };
  for (Index t = 0; t < 12; ++t)
    for (Index c = 0; c < 5; ++c)
      if (vanishes(t)) x.q(1, 2, t, c) = -1 - static_cast<double>(c);

  const auto y = trapping([&] { return call::forward(attention, x); });
  const auto gradients = trapping([&] { return call::backward(attention, x); });
  for (Index t = 0; t < 12; ++t)
    if (vanishes(t)) {
      for (Index c = 0; c < 7; ++c) CHECK(y(1, 2, t, c) == 0);
      for (Index c = 0; c < 5; ++c) CHECK(gradients.query(1, 2, t, c) == 0);
    }
  check_against_oracle(attention, x);
}

// Signed features whose key sums vanish: keys come in pairs (k, -k), exact in every order.
TEMPLATE_TEST_CASE("edges: keys that cancel leave output 0 and no gradient", "[cpu]", MixedKeySum,
                   MixedProduct) {
  using V = Attention<Identity, Blocks1D, Bidirectional, TestType>;
  const V attention{.blocks = {.block = 4}, .normalizer = {.epsilon = 0}};
  auto x = operands<double>(attention, {2, 2, 2, 12, 12, 5, 7});
  for (Index n = 0; n < 2; ++n)
    for (Index h = 0; h < 2; ++h)
      for (Index t = 0; t < 12; t += 2)
        for (Index c = 0; c < 5; ++c) x.k(n, h, t + 1, c) = -x.k(n, h, t, c);
  CHECK(is_zero(trapping([&] { return call::forward(attention, x); })));
  const auto gradients = trapping([&] { return call::backward(attention, x); });
  CHECK(is_zero(gradients.query));
  CHECK(is_zero(gradients.key));
  CHECK(is_zero(gradients.value));
  CHECK(is_zero(gradients.mix));
}

TEST_CASE("edges: the gradients of a call without an output are zero", "[cpu]") {
  const Variant<Blocks1D> attention{.blocks = {.block = 4}};
  for (const Shape& shape :
       {Shape{2, 2, 1, 8, 8, 4, 0, 1, 2, 2}, Shape{2, 0, 3, 8, 8, 4, 3, 1, 2, 2},
        Shape{2, 2, 1, 0, 8, 4, 3, 2, 2, 2}, Shape{0, 2, 1, 8, 8, 4, 3, 2, 2, 2}}) {
    CAPTURE(shape.batch, shape.heads, shape.query_tokens, shape.value_dim);
    const auto x = operands<double>(attention, shape);
    call::Gradients<double> gradients(x);  // as their operands to begin with
    call::backward_to(gradients.views(), Update::accumulate, attention, x);
    CHECK(bitwise_equal(gradients.query.view(), x.q.view()));
    CHECK(bitwise_equal(gradients.key.view(), x.k.view()));
    CHECK(bitwise_equal(gradients.value.view(), x.v.view()));
    CHECK(bitwise_equal(gradients.mix.view(), x.mix.view()));
    call::backward_to(gradients.views(), Update::overwrite, attention, x);
    CHECK(is_zero(gradients.query));
    CHECK(is_zero(gradients.key));
    CHECK(is_zero(gradients.value));
    CHECK(is_zero(gradients.mix));
  }
}
