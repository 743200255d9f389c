// SPDX-License-Identifier: MIT
// Softmax attention against its formula without the shift by the maximum, and its gradients against
// finite differences.
#include <cmath>
#include <cstdint>
#include <limits>
#include <mhla/reference/softmax_attention.hpp>

#include "tests/reference/oracle_call.hpp"
#include "tests/support/error_message.hpp"

using namespace mhla;
using mhla::reference::SoftmaxAttention;
using namespace mhla::testing;

namespace {

constexpr Shape cross{.batch = 2,
                      .heads = 4,
                      .kv_heads = 2,
                      .query_tokens = 11,
                      .key_tokens = 9,
                      .key_dim = 5,
                      .value_dim = 3};

Shape square() {
  Shape shape = cross;
  shape.key_tokens = 11;
  return shape;
}

template <class C>
Results<double> run_softmax(const SoftmaxAttention<C>& attention, const Operands<double>& o,
                            const TokenMasks& masks = {}) {
  Results<double> r{HostTensor<double, 4>::like(o.dy.view()), o.q, o.k, o.v, {}};
  reference::softmax_attention_forward(attention, o.q.view(), o.k.view(), o.v.view(), r.y.view(),
                                       masks);
  reference::softmax_attention_backward(attention, o.q.view(), o.k.view(), o.v.view(), o.dy.view(),
                                        {r.dq.view(), r.dk.view(), r.dv.view(), skip},
                                        Update::overwrite, masks);
  return r;
}

// The formula, for the query's row; `sees` says which keys take part.
template <class Sees>
void check_softmax(const Results<double>& results, const Operands<double>& o, double scale,
                   const Sees& sees) {
  auto expected = HostTensor<double, 4>::like(results.y.view());
  for (Index n = 0; n < o.q.extent(0); ++n)
    for (Index h = 0; h < o.q.extent(1); ++h)
      for (Index t = 0; t < o.q.extent(2); ++t) {
        double sum = 0;
        for (Index j = 0; j < o.k.extent(2); ++j) {
          if (!sees(n, t, j)) continue;
          double score = 0;
          for (Index c = 0; c < o.q.extent(3); ++c) score += o.q(n, h, t, c) * o.k(n, h / 2, j, c);
          sum += std::exp(scale * score);
          for (Index c = 0; c < o.v.extent(3); ++c)
            expected(n, h, t, c) += std::exp(scale * score) * o.v(n, h / 2, j, c);
        }
        for (Index c = 0; c < o.v.extent(3) && sum > 0; ++c) expected(n, h, t, c) /= sum;
      }
  check_close("y", results.y, expected, ::tolerance::oracle_rms<double>);
}

template <class C>
void check_softmax_gradient(const SoftmaxAttention<C>& attention, Operands<double> o,
                            const TokenMasks& masks = {}) {
  const Results<double> r = run_softmax(attention, o, masks);
  const auto loss = [&] { return inner_product(run_softmax(attention, o, masks).y, o.dy); };
  for (const auto& gradient :
       {mhla::testing::check_gradient(loss, 72, 2, differentiate(o.q, r.dq)),
        mhla::testing::check_gradient(loss, 73, 2, differentiate(o.k, r.dk)),
        mhla::testing::check_gradient(loss, 74, 2, differentiate(o.v, r.dv))}) {
    INFO(gradient);
    CHECK(gradient.error <= ::tolerance::gradient_check);
  }
}

}  // namespace

TEST_CASE("softmax attention: equals its formula", "[reference]") {
  const Operands<double> o(cross, 71, Normal{});
  const auto every_key = [](Index, Index, Index) { return true; };
  check_softmax(run_softmax(SoftmaxAttention<>{}, o), o, 1 / std::sqrt(5.0), every_key);
  check_softmax(run_softmax(SoftmaxAttention<>{.scale = 0.3}, o), o, 0.3, every_key);
  const Operands<double> sequence(square(), 71, Normal{});
  check_softmax(run_softmax(SoftmaxAttention<Causal>{.scale = 0.3}, sequence), sequence, 0.3,
                [](Index, Index t, Index j) { return j <= t; });
}

TEST_CASE("softmax attention: gradients by finite differences", "[reference]") {
  const Operands<double> o(cross, 71, Normal{});
  check_softmax_gradient(SoftmaxAttention<>{}, o);
  check_softmax_gradient(SoftmaxAttention<Causal>{.scale = 0.3},
                         Operands<double>(square(), 71, Normal{}));
}

TEST_CASE("softmax attention: masks, and queries that see nothing", "[reference]") {
  Operands<double> o(cross, 75, Normal{});
  HostTensor<std::uint8_t, 2> query_mask(2, 11);
  HostTensor<std::uint8_t, 2> key_mask(2, 9);  // none in batch item 1
  for (Index n = 0; n < 2; ++n)
    for (Index t = 0; t < 11; ++t) query_mask(n, t) = t % 4 != 0;
  for (Index j = 0; j < 9; ++j) key_mask(0, j) = j % 3 != 1;
  const TokenMasks masks{query_mask.view(), key_mask.view()};
  const auto sees = [&](Index n, Index t, Index j) {
    return query_mask(n, t) != 0 && key_mask(n, j) != 0;
  };
  const Results<double> results = run_softmax(SoftmaxAttention<>{}, o, masks);
  check_softmax(results, o, 1 / std::sqrt(5.0), sees);
  for (Index t = 0; t < 11; ++t) CHECK(results.y(1, 2, t, 1) == 0);
  for (Index c = 0; c < 5; ++c) CHECK(results.dk(0, 1, 4, c) == 0);
  check_softmax_gradient(SoftmaxAttention<>{}, o, masks);

  o.k(0, 1, 4, 2) = o.v(0, 1, 4, 2) = std::numeric_limits<double>::quiet_NaN();
  const Results<double> same = run_softmax(SoftmaxAttention<>{}, o, masks);
  CHECK(bitwise_equal(same.y.view(), results.y.view()));
  CHECK(bitwise_equal(same.dq.view(), results.dq.view()));
  CHECK(bitwise_equal(same.dk.view(), results.dk.view()));

  Shape keyless = cross;
  keyless.key_tokens = 0;
  const Results<double> nothing =
      run_softmax(SoftmaxAttention<>{}, Operands<double>(keyless, 1, Normal{}));
  CHECK(all_zero(nothing.y));
  CHECK(all_zero(nothing.dq));
}

TEST_CASE("softmax attention: the weights times v are the output, rows sum to 1", "[reference]") {
  const Operands<double> o(square(), 76, Normal{});
  const SoftmaxAttention<Causal> attention;
  const auto y = run_softmax(attention, o).y;
  HostTensor<double, 2> weights(11, 11);
  reference::softmax_attention_weights(attention, o.q.view(), o.k.view(), 1, 3, weights.view());
  for (Index t = 0; t < 11; ++t) {
    double sum = 0;
    double product = 0;
    for (Index j = 0; j < 11; ++j) {
      CHECK((weights(t, j) == 0) == (j > t));
      sum += weights(t, j);
      product += weights(t, j) * o.v(1, 1, j, 2);
    }
    CHECK(std::abs(sum - 1) <= ::tolerance::oracle_rms<double>);
    CHECK(std::abs(product - y(1, 3, t, 2)) <= 4 * ::tolerance::oracle_rms<double>);
  }
}
