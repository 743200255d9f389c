// SPDX-License-Identifier: MIT
// The forward pass through 16-bit summaries, its kernels executed on the CPU, against the oracle:
// causal blocks of more than a tile, a matrix for each head, scattered elements; half, a rotation
// and more tiles than a ring has slots; mixing in several tiles; sums that 16 bits do not hold.
#include <limits>
#include <mhla/cuda/fused/summaries_pass.cuh>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>

#include "cuda_call.hpp"
#include "tests/cuda/machine.hpp"

namespace {

using namespace mhla;
using namespace cuda_call;
using killer::expect;

using Ordered = Attention<EluPlusOne, Blocks1D, mhla::Causal>;
using Turned = Attention<EluPlusOne, Blocks2D, Bidirectional, MixedKeySum, AxialRotary>;
using Positive = Attention<EluPlusOne, Blocks1D>;

template <int Dim = int{dim}, class V, class T>
HostTensor<T, 4> forward(const V& attention, const Call<T>& call, const OperandViews<T>& operands) {
  HostTensor<T, 4> y = poisoned_result(call);
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
  expect_near(name, attention, call, forward<Dim>(attention, call), bound);
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
    check("key sums of more than 16 bits", Plain{.blocks = {.block = 257}},
          call_of_float_key_sums(), 1e-3);
    check("matrices of more than 16 bits", Plain{.blocks = {.block = 4}}, call_of_float_matrices(),
          4e-3);
    check_mixing();
  });
}
