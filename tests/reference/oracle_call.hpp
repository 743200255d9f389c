// SPDX-License-Identifier: MIT
// One call of the MHLA oracle with random operands, for the tests of the oracle.
#pragma once

#include <cstdint>
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/gradient_check.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/tolerances.hpp"

using namespace mhla;
using mhla::testing::HostTensor;

/// Random operands of a shape; q and k from `distribution`, so that kinks are avoided.
template <class T>
struct Operands {
  HostTensor<T, 4> q, k, v, dy;
  HostTensor<mhla::Accumulator<T>, 3> mix;

  template <class Distribution>
  Operands(const Shape& shape, std::uint64_t seed, const Distribution& distribution)
      : q(mhla::testing::random_tensor<T>(distribution, seed, shape.batch, shape.heads,
                                          shape.query_tokens, shape.key_dim)),
        k(mhla::testing::random_tensor<T>(distribution, seed + 1, shape.batch, shape.kv_heads,
                                          shape.key_tokens, shape.key_dim)),
        v(mhla::testing::random_tensor<T>(mhla::testing::Normal{}, seed + 2, shape.batch,
                                          shape.kv_heads, shape.key_tokens, shape.value_dim)),
        dy(mhla::testing::random_tensor<T>(mhla::testing::Normal{}, seed + 3, shape.batch,
                                           shape.heads, shape.query_tokens, shape.value_dim)),
        mix(mhla::testing::random_tensor<mhla::Accumulator<T>>(
            mhla::testing::Positive{}, seed + 4, shape.mix_heads, shape.mix_query_blocks,
            shape.mix_key_blocks)) {}
};

template <class T>
struct Results {
  HostTensor<T, 4> y, dq, dk, dv;
  HostTensor<mhla::Accumulator<T>, 3> dmix;
};

template <class V, class T>
HostTensor<T, 4> forward(const V& attention, const Operands<T>& operands,
                         const TokenMasks& masks = {}) {
  auto y = HostTensor<T, 4>::like(operands.dy.view());
  mhla::reference::mhla_forward(attention, operands.q, operands.k, operands.v, operands.mix, y,
                                masks);
  return y;
}

template <class V, class T>
Results<T> run(const V& attention, const Operands<T>& operands, const TokenMasks& masks = {}) {
  using A = mhla::Accumulator<T>;
  Results<T> r{forward(attention, operands, masks), HostTensor<T, 4>::like(operands.q.view()),
               HostTensor<T, 4>::like(operands.k.view()), HostTensor<T, 4>::like(operands.v.view()),
               HostTensor<A, 3>::like(operands.mix.view())};
  mhla::reference::mhla_backward(attention, operands.q, operands.k, operands.v, operands.mix,
                                 operands.dy, {r.dq, r.dk, r.dv, r.dmix}, mhla::Update::overwrite,
                                 masks);
  return r;
}

/// sum(y o dy)
template <class T, int Rank>
T inner_product(const HostTensor<T, Rank>& y, const HostTensor<T, Rank>& dy) {
  T sum = 0;
  mhla::testing::for_each_element([&](const T& a, const T& b) { sum += a * b; }, y.view(),
                                  dy.view());
  return sum;
}

/// Demands that each gradient, and all together, are the derivatives of the forward pass.
template <class V, class Distribution>
void check_gradients(const V& attention, const Shape& shape, const Distribution& distribution,
                     const TokenMasks& masks = {}) {
  Operands<double> operands(shape, 11, distribution);
  const Results<double> results = run(attention, operands, masks);
  const auto loss = [&] { return inner_product(forward(attention, operands, masks), operands.dy); };
  const auto dq = mhla::testing::differentiate(operands.q, results.dq);
  const auto dk = mhla::testing::differentiate(operands.k, results.dk);
  const auto dv = mhla::testing::differentiate(operands.v, results.dv);
  const auto dmix = mhla::testing::differentiate(operands.mix, results.dmix);
  const auto require = [&](const char* of, const mhla::testing::GradientCheck& check) {
    INFO("gradient of " << of << ": " << check);
    CHECK(check.error <= tolerance::gradient_check);
    CHECK(check.claimed != 0);
  };
  require("q", mhla::testing::check_gradient(loss, 21, 2, dq));
  require("k", mhla::testing::check_gradient(loss, 22, 2, dk));
  require("v", mhla::testing::check_gradient(loss, 23, 2, dv));
  require("mix", mhla::testing::check_gradient(loss, 24, 2, dmix));
  require("all", mhla::testing::check_gradient(loss, 25, 2, dq, dk, dv, dmix));
}

template <class T, class U, int Rank>
void check_close(const char* what, const HostTensor<T, Rank>& actual,
                 const HostTensor<U, Rank>& expected, double rms_tolerance) {
  const auto comparison = mhla::testing::compare(actual.view(), expected.view());
  INFO(what << " " << comparison);
  CHECK(comparison.rms_ratio <= rms_tolerance);
}

template <class T, int Rank>
bool all_zero(const HostTensor<T, Rank>& tensor) {
  for (const T& element : tensor.elements())
    if (element != T(0)) return false;
  return true;
}
