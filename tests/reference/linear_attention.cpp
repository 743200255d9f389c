// SPDX-License-Identifier: MIT
// Linear attention against three tokens by hand, its gradients against finite differences, and its
// weights against y.
#include <cstdint>
#include <mhla/reference/linear_attention.hpp>

#include "tests/reference/oracle_call.hpp"
#include "tests/support/error_message.hpp"

using namespace mhla;
using namespace mhla::testing;

namespace {

constexpr Shape cross{.batch = 2,
                      .heads = 4,
                      .kv_heads = 2,
                      .query_tokens = 12,
                      .key_tokens = 10,
                      .key_dim = 4,
                      .value_dim = 3,
                      .mix_heads = 1,
                      .mix_query_blocks = 3,
                      .mix_key_blocks = 3};

Shape square() {
  Shape shape = cross;
  shape.key_tokens = 12;
  return shape;
}

template <class V>
Results<double> run_linear(const V& attention, const Operands<double>& o,
                           const TokenMasks& masks = {}) {
  Results<double> r{HostTensor<double, 4>::like(o.dy.view()), o.q, o.k, o.v, {}};
  reference::linear_attention_forward(attention, o.q.view(), o.k.view(), o.v.view(), r.y.view(),
                                      masks);
  reference::linear_attention_backward(attention, o.q.view(), o.k.view(), o.v.view(), o.dy.view(),
                                       {r.dq.view(), r.dk.view(), r.dv.view(), skip},
                                       Update::overwrite, masks);
  return r;
}

template <class V>
void check_linear(const V& attention, const Shape& shape, const TokenMasks& masks = {}) {
  Operands<double> o(shape, 61, AwayFromKink{});
  const Results<double> linear = run_linear(attention, o, masks);

  const auto loss = [&] { return inner_product(run_linear(attention, o, masks).y, o.dy); };
  const auto gradient =
      mhla::testing::check_gradient(loss, 62, 2, differentiate(o.q, linear.dq),
                                    differentiate(o.k, linear.dk), differentiate(o.v, linear.dv));
  INFO(gradient);
  CHECK(gradient.error <= ::tolerance::gradient_check);

  HostTensor<double, 2> weights(shape.query_tokens, shape.key_tokens);
  reference::linear_attention_weights(attention, o.q.view(), o.k.view(), 1, 3,
                                      reference::Weights::normalized, weights.view(), masks);
  HostTensor<double, 2> expected(shape.query_tokens, shape.value_dim);
  HostTensor<double, 2> y = expected;
  for (Index t = 0; t < shape.query_tokens; ++t)
    for (Index c = 0; c < shape.value_dim; ++c) {
      y(t, c) = linear.y(1, 3, t, c);
      for (Index j = 0; j < shape.key_tokens; ++j)
        expected(t, c) += weights(t, j) * o.v(1, 1, j, c);
    }
  check_close("weights times v", y, expected, ::tolerance::oracle_rms<double>);
}

}  // namespace

TEST_CASE("linear attention: three tokens by hand", "[reference]") {
  HostTensor<double, 4> q(1, 1, 3, 1);
  HostTensor<double, 4> k(1, 1, 3, 1);
  HostTensor<double, 4> v(1, 1, 3, 1);
  HostTensor<double, 4> y(1, 1, 3, 1);
  q.elements() = {1, 2, 4};
  k.elements() = {1, 2, 3};
  v.elements() = {1, 0, 2};
  const auto output = [&](const auto& attention) {
    reference::linear_attention_forward(attention, q.view(), k.view(), v.view(), y.view());
    return y.elements();
  };
  using Elements = std::vector<double>;
  // sum k v = 7, sum k = 6; causal: 1, 1, 7 and 1, 3, 6
  const Blocks1D blocks{.block = 2};
  CHECK(output(Attention<Identity, Blocks1D>{.blocks = blocks, .normalizer = {.epsilon = 1}}) ==
        Elements{7 / 7.0, 14 / 13.0, 28 / 25.0});
  CHECK(output(Attention<Identity, Blocks1D, Causal, Unnormalized>{
            .blocks = blocks, .scale = 0.5}) == Elements{0.5, 1, 14});
  CHECK(output(Attention<Identity, Blocks1D, BlockCausal>{.blocks = blocks,
                                                          .normalizer = {.epsilon = 0}}) ==
        Elements{1 / 3.0, 1 / 3.0, 7 / 6.0});
}

TEST_CASE("linear attention: gradients and weights of every kind of variant", "[reference]") {
  HostTensor<std::uint8_t, 2> query_mask(2, 12);
  HostTensor<std::uint8_t, 2> key_mask(2, 10);
  for (Index n = 0; n < 2; ++n) {
    for (Index t = 0; t < 12; ++t) query_mask(n, t) = (t + n) % 4 != 0;
    for (Index j = 0; j < 10; ++j) key_mask(n, j) = (j + n) % 3 != 1;
  }
  const Attention<Relu, Blocks1D> plain{
      .blocks = {.block = 5}, .mixing = {.leading_corner = true}, .scale = 0.7};
  check_linear(plain, cross);
  check_linear(plain, cross, {query_mask.view(), key_mask.view()});
  check_linear(
      Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>{.blocks = {.block = 5}},
      square());
  check_linear(
      Attention<Softmax, Blocks1D, BlockCausal, Unnormalized, AxialRotary>{.blocks = {.block = 5}},
      square());
  Shape images = cross;
  images.mix_query_blocks = 4;
  check_linear(
      Attention<EluPlusOne, Blocks2D, Bidirectional, Unnormalized, AxialRotary>{
          .blocks = {.grid = {3, 4}, .block = {2, 2}},
          .key_blocks = {.grid = {2, 5}, .block = {2, 2}}},
      images);
}
