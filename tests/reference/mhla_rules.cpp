// SPDX-License-Identifier: MIT
// What the MHLA oracle promises beside its formula: masks, zero denominators, empty and strided
// tensors, accumulation, skipped gradients, NaN, 16-bit storage, and errors.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "tests/reference/oracle_call.hpp"
#include "tests/support/error_message.hpp"

using namespace mhla;
using namespace mhla::testing;

namespace {

constexpr Shape cross{.batch = 2,
                      .heads = 4,
                      .kv_heads = 2,
                      .query_tokens = 11,
                      .key_tokens = 9,
                      .key_dim = 4,
                      .value_dim = 3,
                      .mix_heads = 4,
                      .mix_query_blocks = 3,
                      .mix_key_blocks = 3};
using Plain = Attention<EluPlusOne, Blocks1D>;
constexpr Plain plain{.blocks = {.block = 4}};
constexpr Plain of_larger_mix{.blocks = {.block = 4}, .mixing = {.leading_corner = true}};

Shape square() {
  Shape shape = cross;
  shape.key_tokens = 11;
  return shape;
}

bool same(const Results<double>& a, const Results<double>& b) {
  return bitwise_equal(a.y.view(), b.y.view()) && bitwise_equal(a.dq.view(), b.dq.view()) &&
         bitwise_equal(a.dk.view(), b.dk.view()) && bitwise_equal(a.dv.view(), b.dv.view()) &&
         bitwise_equal(a.dmix.view(), b.dmix.view());
}

// The first `tokens` tokens.
HostTensor<double, 4> leading(HostTensor<double, 4>& tensor, Index tokens) {
  auto view = tensor.view();
  view.extent[2] = tokens;
  return converted<double>(view);
}

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

int count_nan(const HostTensor<double, 4>& tensor, Index batch, Index head, Index token) {
  int count = 0;
  for (Index c = 0; c < tensor.extent(3); ++c) count += std::isnan(tensor(batch, head, token, c));
  return count;
}

}  // namespace

TEST_CASE("oracle: trailing masked keys are bitwise not there, whatever they hold", "[reference]") {
  Operands<double> operands(cross, 41, Normal{});
  HostTensor<std::uint8_t, 2> mask(2, 9);
  for (Index n = 0; n < 2; ++n)
    for (Index j = 0; j < 6; ++j) mask(n, j) = 1;
  for (Index n = 0; n < 2; ++n)
    for (Index h = 0; h < 2; ++h)
      for (Index j = 6; j < 9; ++j) operands.k(n, h, j, 1) = operands.v(n, h, j, 2) = nan_value;
  Results<double> masked = run(plain, operands, {{}, mask.view()});

  Operands<double> cut = operands;
  cut.k = leading(operands.k, 6);
  cut.v = leading(operands.v, 6);
  Results<double> expected = run(of_larger_mix, cut);
  CHECK(bitwise_equal(masked.y.view(), expected.y.view()));
  CHECK(bitwise_equal(masked.dq.view(), expected.dq.view()));
  CHECK(bitwise_equal(leading(masked.dk, 6).view(), expected.dk.view()));
  CHECK(bitwise_equal(leading(masked.dv, 6).view(), expected.dv.view()));
  for (Index n = 0; n < 2; ++n)
    for (Index h = 0; h < 2; ++h)
      for (Index j = 6; j < 9; ++j)
        for (Index c = 0; c < 3; ++c) {
          CHECK(masked.dk(n, h, j, c) == 0);
          CHECK(masked.dv(n, h, j, c) == 0);
        }
  // Block 2 of the keys begins at token 8: masked out entirely, its column has no gradient.
  for (Index h = 0; h < 4; ++h)
    for (Index i = 0; i < 3; ++i) {
      CHECK(masked.dmix(h, i, 2) == 0);
      CHECK(masked.dmix(h, i, 1) == expected.dmix(h, i, 1));
    }
}

TEST_CASE("oracle: masked queries have output 0 and no part in any gradient", "[reference]") {
  Operands<double> operands(cross, 43, Normal{});
  HostTensor<std::uint8_t, 2> mask(2, 11);
  Operands<double> silent = operands;
  for (Index n = 0; n < 2; ++n)
    for (Index t = 0; t < 11; ++t) {
      mask(n, t) = (t + n) % 4 != 0;
      for (Index h = 0; h < 4 && mask(n, t) == 0; ++h) {
        for (Index c = 0; c < 3; ++c) silent.dy(n, h, t, c) = 0;
        operands.q(n, h, t, 1) = nan_value;
      }
    }
  const Results<double> masked = run(plain, operands, {mask.view(), {}});
  const Results<double> expected = run(plain, silent);
  CHECK(bitwise_equal(masked.dk.view(), expected.dk.view()));
  CHECK(bitwise_equal(masked.dv.view(), expected.dv.view()));
  CHECK(bitwise_equal(masked.dmix.view(), expected.dmix.view()));
  for (Index n = 0; n < 2; ++n)
    for (Index t = 0; t < 11; ++t)
      for (Index c = 0; c < 3; ++c) {
        CHECK(masked.y(n, 3, t, c) == (mask(n, t) == 0 ? 0 : expected.y(n, 3, t, c)));
        CHECK(masked.dq(n, 3, t, c) == (mask(n, t) == 0 ? 0 : expected.dq(n, 3, t, c)));
      }
}

TEST_CASE("oracle: a denominator of 0 gives output 0 and no gradient", "[reference]") {
  const Attention<Relu, Blocks1D> attention{
      .feature_map = {.epsilon = 0}, .blocks = {.block = 4}, .normalizer = {.epsilon = 0}};
  Operands<double> operands(cross, 44, Positive{});
  for (Index c = 0; c < 4; ++c) operands.q(1, 2, 5, c) = -1;  // phi(q) = 0
  Operands<double> silent = operands;
  for (Index c = 0; c < 3; ++c) silent.dy(1, 2, 5, c) = 0;
  for (Index c = 0; c < 4; ++c) silent.q(1, 2, 5, c) = 1;
  const Results<double> results = run(attention, operands);
  const Results<double> expected = run(attention, silent);
  for (Index c = 0; c < 3; ++c) CHECK(results.y(1, 2, 5, c) == 0);
  CHECK(bitwise_equal(results.dq.view(), expected.dq.view()));
  CHECK(bitwise_equal(results.dk.view(), expected.dk.view()));
  CHECK(bitwise_equal(results.dv.view(), expected.dv.view()));
  CHECK(bitwise_equal(results.dmix.view(), expected.dmix.view()));

  // The same where signed features cancel, though the numerator does not vanish.
  Operands<double> two({.batch = 1,
                        .heads = 1,
                        .kv_heads = 1,
                        .query_tokens = 1,
                        .key_tokens = 2,
                        .key_dim = 1,
                        .value_dim = 1,
                        .mix_heads = 1,
                        .mix_query_blocks = 1,
                        .mix_key_blocks = 1},
                       1, Normal{});
  two.q.elements() = {3};
  two.k.elements() = {1, -1};
  two.v.elements() = {1, 0};
  const Attention<Identity, Blocks1D> signed_features{.blocks = {.block = 2},
                                                      .normalizer = {.epsilon = 0}};
  const Results<double> nothing = run(signed_features, two);
  CHECK(all_zero(nothing.y));
  CHECK(all_zero(nothing.dq));
  CHECK(all_zero(nothing.dk));
  CHECK(all_zero(nothing.dv));
  CHECK(all_zero(nothing.dmix));
}

TEST_CASE("oracle: causal mix has no gradient above the diagonal", "[reference]") {
  const Attention<EluPlusOne, Blocks1D, Causal> causal{.blocks = {.block = 4}};
  const Attention<EluPlusOne, Blocks1D, BlockCausal> by_block{.blocks = {.block = 4}};
  const Operands<double> operands(square(), 49, Normal{});
  for (const auto& dmix : {run(causal, operands).dmix, run(by_block, operands).dmix})
    for (Index i = 0; i < 3; ++i)
      for (Index b = 0; b < 3; ++b) CHECK((dmix(1, i, b) == 0) == (b > i));
}

TEST_CASE("oracle: the weights times v are the output", "[reference]") {
  HostTensor<std::uint8_t, 2> mask(2, 11);
  for (Index n = 0; n < 2; ++n)
    for (Index j = 0; j < 11; ++j) mask(n, j) = j % 5 != 2;
  const Operands<double> o(square(), 50, Normal{});
  const auto check = [&](const auto& attention, const TokenMasks& masks) {
    const auto y = forward(attention, o, masks);
    HostTensor<double, 2> weights(11, 11);
    auto product = HostTensor<double, 4>::like(y.view());
    for (Index n = 0; n < 2; ++n)
      for (Index h = 0; h < 4; ++h) {
        reference::mhla_weights(attention, o.q.view(), o.k.view(), o.mix.view(), n, h,
                                reference::Weights::normalized, weights.view(), masks);
        for (Index t = 0; t < 11; ++t)
          for (Index j = 0; j < 11; ++j)
            for (Index c = 0; c < 3; ++c)
              product(n, h, t, c) += weights(t, j) * o.v(n, h / 2, j, c);
      }
    check_close("weights v", product, y, ::tolerance::oracle_rms<double>);
    return weights;
  };
  check(plain, {});
  check(plain, {mask.view(), mask.view()});
  const auto causal = check(
      Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>{.blocks = {.block = 4}},
      {});
  for (Index t = 0; t < 11; ++t)
    for (Index j = 0; j < 11; ++j) CHECK((causal(t, j) == 0) == (j > t));

  // Rows of the normalized matrix sum to 1; the other is m[b(t), b(j)] phi(q_t) . phi(k_j).
  const Plain exact{.blocks = {.block = 4}, .normalizer = {.epsilon = 0}};
  HostTensor<double, 2> weights(11, 11);
  reference::mhla_weights(exact, o.q.view(), o.k.view(), o.mix.view(), 1, 3,
                          reference::Weights::normalized, weights.view());
  double sum = 0;
  for (Index j = 0; j < 11; ++j) sum += weights(6, j);
  CHECK(std::abs(sum - 1) <= ::tolerance::oracle_rms<double>);
  reference::mhla_weights(exact, o.q.view(), o.k.view(), o.mix.view(), 1, 3,
                          reference::Weights::unnormalized, weights.view());
  double score = 0;
  for (Index c = 0; c < 4; ++c)
    score += EluPlusOne{}.value(o.q(1, 3, 6, c)) * EluPlusOne{}.value(o.k(1, 1, 9, c));
  CHECK(std::abs(weights(6, 9) - o.mix(3, 1, 2) * score) <=
        ::tolerance::oracle_rms<double> * score);
}

TEST_CASE("oracle: NaN reaches what depends on it and nothing else", "[reference]") {
  const Shape shape = square();
  const Operands<double> clean(shape, 51, Normal{});
  const auto expected = forward(plain, clean);
  SECTION("in a query: its row") {
    Operands<double> operands = clean;
    operands.q(1, 2, 5, 3) = nan_value;
    const auto y = forward(plain, operands);
    CHECK(count_nan(y, 1, 2, 5) == 3);
    for (Index t = 0; t < 11; ++t)
      if (t != 5) CHECK(y(1, 2, t, 0) == expected(1, 2, t, 0));
    CHECK(y(1, 3, 5, 0) == expected(1, 3, 5, 0));
  }
  SECTION("in a key: its head, with a mix of 0 as well") {
    Operands<double> operands = clean;
    operands.k(0, 1, 9, 0) = nan_value;
    operands.mix(2, 0, 2) = 0;
    const auto y = forward(plain, operands);
    for (Index t = 0; t < 11; ++t) {
      CHECK(count_nan(y, 0, 2, t) == 3);
      CHECK(count_nan(y, 0, 3, t) == 3);
      CHECK(count_nan(y, 0, 1, t) == 0);
      CHECK(count_nan(y, 1, 2, t) == 0);
    }
  }
  SECTION("in a value: its column of the head") {
    Operands<double> operands = clean;
    operands.v(0, 1, 9, 1) = nan_value;
    const auto y = forward(plain, operands);
    for (Index t = 0; t < 11; ++t) {
      CHECK(count_nan(y, 0, 2, t) == 1);
      CHECK(std::isnan(y(0, 2, t, 1)));
    }
  }
  SECTION("under Causal: nothing before its token") {
    const Attention<EluPlusOne, Blocks1D, Causal> causal{.blocks = {.block = 4}};
    Operands<double> operands = clean;
    operands.k(0, 1, 6, 0) = nan_value;
    operands.v(0, 1, 6, 0) = nan_value;
    const auto y = forward(causal, operands);
    for (Index t = 0; t < 11; ++t) CHECK(count_nan(y, 0, 2, t) == (t < 6 ? 0 : 3));
  }
  SECTION("under MixedProduct, in a query: its offset in all blocks") {
    Shape even = shape;
    even.query_tokens = even.key_tokens = 12;
    const Attention<EluPlusOne, Blocks1D, Bidirectional, MixedProduct> product{
        .blocks = {.block = 4}};
    Operands<double> operands(even, 52, Normal{});
    operands.q(0, 2, 6, 0) = nan_value;
    const auto y = forward(product, operands);
    for (Index t = 0; t < 12; ++t) CHECK(count_nan(y, 0, 2, t) == (t % 4 == 2 ? 3 : 0));
  }
}

TEST_CASE("oracle: wrong sizes are refused before anything is written", "[reference]") {
  const Operands<double> o(cross, 54, Normal{});
  Results<double> r = run(plain, o);
  const Results<double> before = r;
  HostTensor<double, 4> wrong(2, 4, 11, 4);
  HostTensor<double, 3> wrong_mix(4, 3, 4);
  const auto forward_message = [&](TensorView<double, 4> y, const TokenMasks& masks) {
    return error_message<ShapeError>([&] {
      reference::mhla_forward(plain, o.q.view(), o.k.view(), o.v.view(), o.mix.view(), y, masks);
    });
  };
  const auto backward_message = [&](TensorView<const double, 4> dy,
                                    const GradientViews<double>& gradients) {
    return error_message<ShapeError>([&] {
      reference::mhla_backward(plain, o.q.view(), o.k.view(), o.v.view(), o.mix.view(), dy,
                               gradients);
    });
  };
  const HostTensor<std::uint8_t, 2> mask(2, 10);
  CHECK(says(forward_message(wrong.view(), {}), "y: axis dim is 4 but must be 3"));
  CHECK(says(forward_message(r.y.view(), {mask.view(), {}}),
             "masks.query: axis tokens is 10 but must be 11"));
  CHECK(says(forward_message(r.y.view(), {{}, mask.view()}),
             "masks.key: axis tokens is 10 but must be 9"));
  CHECK(says(backward_message(wrong.view(), {skip, skip, skip, skip}),
             "dy: axis dim is 4 but must be 3"));
  CHECK(says(backward_message(o.dy.view(), {r.dq.view(), wrong.view(), skip, skip}),
             "dk: axis heads is 4 but must be 2"));
  CHECK(says(backward_message(o.dy.view(), {r.dk.view(), r.dk.view(), skip, skip}),
             "dq: axis heads is 2 but must be 4"));
  CHECK(says(backward_message(o.dy.view(), {r.dq.view(), r.dk.view(), r.dk.view(), skip}),
             "dv: axis dim is 4 but must be 3"));
  CHECK(says(backward_message(o.dy.view(), {r.dq.view(), skip, skip, wrong_mix.view()}),
             "dmix: axis key blocks is 4 but must be 3"));
  CHECK(same(r, before));

  const Attention<EluPlusOne, Blocks1D, Bidirectional, MixedProduct> product{
      .blocks = {.block = 11}};
  Shape even = square();
  even.mix_query_blocks = even.mix_key_blocks = 1;
  const HostTensor<std::uint8_t, 2> full(2, 11);
  CHECK(says(error_message<ShapeError>([&] {
               forward(product, Operands<double>(even, 1, Normal{}), {{}, full.view()});
             }),
             "masks", "MixedProduct", "MixedKeySum"));

  HostTensor<double, 2> weights(11, 9);
  const auto weights_message = [&](Index batch, Index head, TensorView<double, 2> view) {
    return error_message<ShapeError>([&] {
      reference::mhla_weights(plain, o.q.view(), o.k.view(), o.mix.view(), batch, head,
                              reference::Weights::normalized, view);
    });
  };
  CHECK(weights_message(1, 3, weights.view()) == "nothing was thrown");
  CHECK(says(weights_message(2, 3, weights.view()), "(2, 3)", "2 batches", "4 heads"));
  CHECK(says(weights_message(1, 4, weights.view()), "(1, 4)"));
  CHECK(says(weights_message(1, 3, make_view(weights.view().data, 9, 11)),
             "weights: axis query tokens is 9 but must be 11"));
}
