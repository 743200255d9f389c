// SPDX-License-Identifier: MIT
// The forward pass through 16-bit summaries, its kernels executed on the CPU, against the oracle:
// causal blocks of more than a tile, a matrix for each head, scattered elements; half, a rotation
// and more tiles than a ring has slots; mixing in several tiles; sums that 16 bits do not hold.
#include <cmath>
#include <limits>
#include <mhla/cuda/fused/summaries_pass.cuh>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <vector>

#include "killer.hpp"
#include "tests/cuda/machine.hpp"

namespace {

using namespace mhla;
using killer::expect;
using mhla::testing::HostTensor;

constexpr Index dim = 32;
using Ordered = Attention<EluPlusOne, Blocks1D, mhla::Causal>;
using Turned = Attention<EluPlusOne, Blocks2D, Bidirectional, MixedKeySum, AxialRotary>;
using Positive = Attention<EluPlusOne, Blocks1D>;
using Plain = Attention<Identity, Blocks1D>;

template <class T>
struct Call {
  HostTensor<T, 4> q, k, v;
  HostTensor<float, 3> mix;

  Shape shape() const { return shape_of(q.view(), k.view(), v.view(), mix.view()); }
};

template <class T>
Call<T> random_call(Index heads, Index kv_heads, Index tokens, Index mix_heads, Index blocks,
                    Index of_dim = dim) {
  using mhla::testing::random_tensor;
  const mhla::testing::ExactInBFloat16<mhla::testing::Normal> normal;
  Call<T> call{
      random_tensor<T>(normal, 1, 1, heads, tokens, of_dim),
      random_tensor<T>(normal, 2, 1, kv_heads, tokens, of_dim),
      random_tensor<T>(normal, 3, 1, kv_heads, tokens, of_dim),
      random_tensor<float>(mhla::testing::Uniform{0.1f, 1.0f}, 4, mix_heads, blocks, blocks)};
  for (T& v : call.v.elements()) store(v, load(v) + 1.0f);
  return call;
}
template <class T>
Call<T> empty_call(Index tokens, Index blocks) {
  const HostTensor<T, 4> x(1, 1, tokens, dim);
  return {x, x, x, HostTensor<float, 3>(1, blocks, blocks)};
}

template <int Dim = int{dim}, class V, class T>
HostTensor<T, 4> forward(const V& attention, const Call<T>& call, const OperandViews<T>& operands) {
  HostTensor<T, 4> y = call.q;
  for (T& e : y.elements()) store(e, std::numeric_limits<float>::quiet_NaN());
  const Problem problem = checked_problem(attention, call.shape());
  Arena measured;
  cuda::fused::SummaryPlan<V, T>(measured, attention, problem, problem.shape.batch, false);
  const Workspace workspace(measured.used());
  cuda::fused::attend_by_summaries<HeadDims<Dim, Dim>>(machine::device(), attention, problem,
                                                       operands, y.view(), workspace);
  return y;
}
template <int Dim = int{dim}, class V, class T>
HostTensor<T, 4> forward(const V& attention, const Call<T>& call) {
  return forward<Dim>(attention, call,
                      {call.q.view(), call.k.view(), call.v.view(), call.mix.view()});
}

template <int Dim = int{dim}, class V, class T>
void check(const std::string& name, const V& attention, const Call<T>& call, double bound) {
  const auto wide = [](const auto& from) { return mhla::testing::converted<double>(from); };
  const auto q = wide(call.q), k = wide(call.k), v = wide(call.v);
  const auto mix = wide(call.mix);
  auto expected = q;
  reference::mhla_forward(attention, q, k, v, mix, expected.view());
  const auto result = mhla::testing::compare(forward<Dim>(attention, call).view(), expected.view());
  expect(result.rms_ratio <= bound, name + ": " + result.report());
}

/// Elements two apart, in rows that drift against multiples of 16 bytes.
void check_strides(const Ordered& attention, const Call<BFloat16>& call) {
  const auto scattered = [](const HostTensor<BFloat16, 4>& from) {
    HostTensor<BFloat16, 4> to(1, from.extent(1), from.extent(2), 2 * dim + 1);
    for (Index h = 0; h < from.extent(1); ++h)
      for (Index t = 0; t < from.extent(2); ++t)
        for (Index c = 0; c < dim; ++c) to(0, h, t, 2 * c) = from(0, h, t, c);
    return to;
  };
  const auto view = [](const HostTensor<BFloat16, 4>& of) {
    TensorView<const BFloat16, 4> v = of.view();
    v.extent[3] = dim;
    v.stride[3] = 2;
    return v;
  };
  const auto q = scattered(call.q), k = scattered(call.k), v = scattered(call.v);
  expect(mhla::testing::bitwise_equal(
             forward(attention, call, {view(q), view(k), view(v), call.mix.view()}).view(),
             forward(attention, call).view()),
         "strides change no bit");
}

void check_infinities(const Ordered& attention, Call<BFloat16> call) {
  const auto y = forward(attention, call);
  store(call.v(0, 0, 40, 3), std::numeric_limits<float>::infinity());
  const auto spoilt = forward(attention, call);
  for (Index t = 0; t < 70; ++t)
    expect((spoilt(0, 1, t, 3).bits == y(0, 1, t, 3).bits) == (t < 40),
           "a token sees an infinity exactly from its own place on");
}

/// The summary of 257 ones rounds, so one value is 0; the key sum may not round.
void check_float_key_sums() {
  auto call = empty_call<BFloat16>(257, 1);
  for (Index t = 0; t < 257; ++t) {
    store(call.q(0, 0, t, 0), 1.0f);
    store(call.k(0, 0, t, 0), 1.0f);
    for (Index c = 0; c < dim; ++c) store(call.v(0, 0, t, c), t == 0 ? 0.0f : 1.0f);
  }
  call.mix(0, 0, 0) = 1;
  check("key sums of more than 16 bits", Plain{.blocks = {.block = 257}}, call, 1e-3);
}

/// 1 + 3/512 rounds to 1 + 4/512, and 256 (1 + 3/512) - 256 to 2.
void check_two_planes_of_the_matrix() {
  auto call = empty_call<BFloat16>(8, 2);
  for (Index t = 0; t < 8; ++t) {
    store(call.q(0, 0, t, 0), 1.0f);
    store(call.k(0, 0, t, 0), 1.0f);
    for (Index c = 0; c < dim; ++c)
      store(call.v(0, 0, t, c), t == 0 ? 256.0f : t == 4 ? -256.0f : 0.0f);
  }
  for (Index i = 0; i < 2; ++i) {
    call.mix(0, i, 0) = 1 + 3.0f / 512;
    call.mix(0, i, 1) = 1;
  }
  check("matrices of more than 16 bits", Plain{.blocks = {.block = 4}}, call, 4e-3);
}

/// More blocks than a tile has, for a narrow summary.
void check_mixing() {
  constexpr Index rows = 140, inner = 150, width = 8;
  const mhla::testing::ExactInBFloat16<mhla::testing::Normal> normal;
  const auto source = mhla::testing::random_tensor<BFloat16>(normal, 5, 1, 1, inner, width);
  const auto mix = mhla::testing::random_tensor<float>(normal, 6, 1, rows, inner);
  HostTensor<BFloat16, 4> result(1, 1, rows, width);
  HostTensor<double, 4> expected(1, 1, rows, width);
  for (Index i = 0; i < rows; ++i)
    for (Index c = 0; c < width; ++c)
      for (Index b = 0; b < inner; ++b)
        expected(0, 0, i, c) += static_cast<double>(mix(0, i, b)) * load(source(0, 0, b, c));
  cuda::fused::MixingShape shape;
  shape.units = 1;
  shape.query_blocks = rows;
  shape.key_blocks = inner;
  shape.width = width;
  cuda::fused::mix(machine::device_within_a_call(), shape, {mix.view().data, rows * inner, inner},
                   cuda::fused::SummaryRows<const BFloat16>{source.view().data, 1, 0, 0, width, 0},
                   cuda::fused::SummaryRows<BFloat16>{result.view().data, 1, 0, 0, width, 0});
  const auto error = mhla::testing::compare(result.view(), expected.view());
  expect(error.rms_ratio <= 4e-3, "mixing: " + error.report());
}

}  // namespace

int main() {
  killer::run([] {
    const Ordered ordered{.blocks = {.block = 70}};
    const auto call = random_call<BFloat16>(2, 1, 80, 2, 2);
    check("causal", ordered, call, 4e-3);
    check_strides(ordered, call);
    check_infinities(ordered, call);
    check("turned",
          Turned{.blocks = {.grid = {12, 20}, .block = {10, 20}}, .rotation = {.theta = 10}},
          random_call<Half>(2, 1, 240, 2, 2), 1e-3);
    // What is read out takes the place of features, but is half as wide.
    check<256>("long rows", Positive{.blocks = {.block = 130}},
               random_call<BFloat16>(1, 1, 130, 1, 1, 256), 4e-3);
    check_float_key_sums();
    check_two_planes_of_the_matrix();
    check_mixing();
  });
}
