// SPDX-License-Identifier: MIT
// Attention as pairs of tokens, its kernels executed on the CPU, against the oracle: causal blocks
// in several tiles, a group of query heads and a matrix for each; no infinity reaches the tokens
// before it.
#include <limits>
#include <mhla/cuda/fused/quadratic_pass.cuh>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/policy/variant.hpp>
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>

#include "killer.hpp"
#include "tests/cuda/machine.hpp"

namespace {

using killer::expect;
using mhla::BFloat16;
using mhla::Index;
using mhla::testing::HostTensor;
using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal>;
using Dims = mhla::HeadDims<32, 32>;

constexpr Index tokens = 70;

template <class T>
struct Call {
  HostTensor<T, 4> q, k, v, y, dy, dq, dk, dv;
  HostTensor<mhla::Accumulator<T>, 3> mix, dmix;

  mhla::Shape shape() const { return mhla::shape_of(q.view(), k.view(), v.view(), mix.view()); }
};

template <class To, class T>
Call<To> converted(const Call<T>& x) {
  using mhla::testing::converted;
  return {converted<To>(x.q),
          converted<To>(x.k),
          converted<To>(x.v),
          converted<To>(x.y),
          converted<To>(x.dy),
          converted<To>(x.dq),
          converted<To>(x.dk),
          converted<To>(x.dv),
          converted<mhla::Accumulator<To>>(x.mix),
          converted<mhla::Accumulator<To>>(x.dmix)};
}

Call<BFloat16> random_call() {
  using mhla::testing::ExactInBFloat16;
  using mhla::testing::Normal;
  using mhla::testing::random_tensor;
  const ExactInBFloat16<Normal> normal;
  Call<BFloat16> x;
  x.q = random_tensor<BFloat16>(normal, 1, 1, 2, tokens, 32);
  x.k = random_tensor<BFloat16>(normal, 2, 1, 1, tokens, 32);
  x.v = random_tensor<BFloat16>(normal, 3, 1, 1, tokens, 32);
  for (BFloat16& v : x.v.elements()) store(v, load(v) + 1.0f);
  x.dy = random_tensor<BFloat16>(normal, 4, 1, 2, tokens, 32);
  x.mix = random_tensor<float>(mhla::testing::Uniform{0.1f, 1.0f}, 5, 2, 4, 4);
  x.y = x.dq = x.q;
  x.dk = x.dv = x.k;
  x.dmix = x.mix;
  return x;
}

/// Calls pass(workspace).
template <class Pass>
void run(const Attention& attention, const mhla::Problem& problem, bool backward,
         const Pass& pass) {
  mhla::Arena measured;
  mhla::cuda::fused::PairPlan<Attention>(measured, attention, problem, 1, backward);
  const mhla::Workspace workspace(measured.used());
  pass(workspace);
}

void forward(const Attention& attention, Call<BFloat16>& x) {
  const mhla::Problem problem = checked_problem(attention, x.shape());
  run(attention, problem, false, [&](const mhla::Workspace& workspace) {
    mhla::cuda::fused::attend_by_pairs<Dims, Attention, BFloat16>(
        machine::device(), attention, problem, {x.q.view(), x.k.view(), x.v.view(), x.mix.view()},
        x.y.view(), workspace);
  });
}
void backward(const Attention& attention, Call<BFloat16>& x) {
  const mhla::Problem problem = checked_problem(attention, x.shape());
  run(attention, problem, true, [&](const mhla::Workspace& workspace) {
    mhla::cuda::fused::attend_by_pairs_gradient<Dims, Attention, BFloat16>(
        machine::device(), attention, problem, {x.q.view(), x.k.view(), x.v.view(), x.mix.view()},
        x.dy.view(), {x.dq.view(), x.dk.view(), x.dv.view(), x.dmix.view()},
        mhla::Update::overwrite, workspace);
  });
}

template <class T, int Rank>
void expect_close(const HostTensor<T, Rank>& actual, const HostTensor<double, Rank>& expected,
                  double bound, const std::string& what) {
  const auto result = mhla::testing::compare(actual.view(), expected.view());
  expect(result.rms_ratio <= bound, what + ": " + result.report());
}

void check_results(const Attention& attention) {
  Call<BFloat16> x = random_call();
  auto expected = converted<double>(x);
  mhla::reference::mhla_forward(attention, expected.q, expected.k, expected.v, expected.mix,
                                expected.y.view());
  mhla::reference::mhla_backward(
      attention, expected.q.view(), expected.k, expected.v, expected.mix, expected.dy,
      {expected.dq.view(), expected.dk.view(), expected.dv.view(), expected.dmix.view()});
  forward(attention, x);
  backward(attention, x);
  expect_close(x.y, expected.y, 4e-3, "y");
  expect_close(x.dq, expected.dq, 6e-3, "dq");
  expect_close(x.dk, expected.dk, 4e-3, "dk");
  expect_close(x.dv, expected.dv, 4e-3, "dv");
  expect_close(x.dmix, expected.dmix, 3e-3, "dmix");
}

void check_infinities(const Attention& attention) {
  Call<BFloat16> x = random_call();
  forward(attention, x);
  Call<BFloat16> spoilt = x;
  store(spoilt.v(0, 0, 40, 3), std::numeric_limits<float>::infinity());
  forward(attention, spoilt);
  for (Index t = 0; t < tokens; ++t)
    expect((spoilt.y(0, 1, t, 3).bits == x.y(0, 1, t, 3).bits) == (t < 40),
           "a token sees an infinity exactly from its own place on");
}

}  // namespace

int main() {
  killer::run([] {
    const Attention attention{.blocks = {.block = 20}, .normalizer = {.epsilon = 3}};
    check_results(attention);
    check_infinities(attention);
  });
}
