// SPDX-License-Identifier: MIT
// The forward pass through 16-bit summaries, its kernels' own source on the machine that stands in
// for a GPU, against the oracle in double, which rounds nothing but the inputs.
#include <cmath>
#include <limits>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/paths/summaries.cuh>
#include <mhla/packed.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cuda/fused_call.hpp"
#include "tests/cuda/machine.hpp"

namespace {

using namespace mhla;
using call::Operands;
using namespace fused_call;
using mhla::testing::HostTensor;

template <class T, int KeyDim, int ValueDim, class V>
HostTensor<T, 4> forward(const V& attention, const Operands<T>& x, const TensorView<const T, 4>& q,
                         const TensorView<const T, 4>& k, const TensorView<const T, 4>& v) {
  HostTensor<T, 4> y = x.dy;
  poison(y);
  const Problem problem = checked_problem(attention, x.shape());
  using Plan = cuda::fused::SummaryPlan<V, T>;
  const Workspace workspace(cuda::plan_size<Plan>(
      attention, problem, cuda::items_at_once<Plan>(attention, problem, false), false));
  const CudaDevice device = machine::device();
  cuda::SummariesPath::forward<HeadDims<KeyDim, ValueDim>, V, T>(
      {device, attention, problem, {q, k, v, x.mix.view()}, y.view(), workspace});
  if constexpr (requires { attention.masks; })
    cuda::clear_masked(machine::device(), attention.masks.query, y.view());
  return y;
}

template <class T, int KeyDim, int ValueDim, class V>
void check(const char* name, const V& attention, Shape shape) {
  shape.key_dim = KeyDim;
  shape.value_dim = ValueDim;
  const Operands<T> x = operands_of<T>(attention, shape);
  const auto y = forward<T, KeyDim, ValueDim>(attention, x, x.q, x.k, x.v);
  const auto expected = expected_forward(attention, call::converted<double>(x));
  const auto result = mhla::testing::compare(y.view(), expected.view());
  CAPTURE(name, KeyDim, ValueDim);
  INFO(result.report());
  CHECK(result.rms_ratio <= bound_of_y<T>);

  if (!fused_call::runs_again()) return;
  CHECK(call::bitwise_equal(y.view(),
                            forward<T, KeyDim, ValueDim>(attention, x, x.q, x.k, x.v).view()));
}

// A user's own feature map.
struct Cube {
  template <class T>
  T value(T x) const {
    return x * x * x + T(2);
  }
  template <class T>
  T derivative(T x) const {
    return T(3) * x * x;
  }
};

}  // namespace

TEST_CASE("fused: the readout has its first queries before summaries are mixed", "[cuda]") {
  const auto early = [](const auto& attention, Index tokens) {
    const Operands<BFloat16> x =
        operands_of<BFloat16>(attention, {1, 2, 2, tokens, tokens, 64, 64});
    forward<BFloat16, 64, 64>(attention, x, x.q, x.k, x.v);
    const Index of_queries = 2 * tokens * 64 * 2;
    return static_cast<double>(machine::context().last_kernel_bytes_read_early) /
           static_cast<double>(of_queries);
  };
  // Each chunk of 16 bytes comes with the number of its row's token, of 4.
  const double once = early(Line<>{.blocks = {.block = 64}}, 192);
  CHECK(once == 1.25);
  CHECK(early(Line<Causal, Unnormalized>{.blocks = {.block = 64}}, 192) == once);
  // Of three tiles the first one.
  CHECK(early(Line<>{.blocks = {.block = 192}}, 192) == Approx(once / 3));
}

TEST_CASE("fused: forward, blocks of one, two and three axes", "[cuda]") {
  check<BFloat16, 64, 64>("line", Line<>{.blocks = {.block = 20}}, {1, 1, 1, 50, 50});
  check<BFloat16, 64, 64>("one token", Line<>{.blocks = {.block = 4}}, {1, 1, 1, 1, 1});
  check<BFloat16, 32, 32>("more tiles than a ring has slots", Line<>{.blocks = {.block = 210}},
                          {1, 1, 1, 230, 230});
  check<BFloat16, 64, 64>("image", Image<>{.blocks = {.grid = {7, 9}, .block = {4, 3}}},
                          {2, 2, 1, 63, 63});
#ifdef MHLA_TEST_ALL_CASES
  check<Half, 72, 72>("image", Image<>{.blocks = {.grid = {7, 9}, .block = {4, 3}}},
                      {1, 2, 2, 63, 63});
#endif
#ifndef MHLA_SMALL_PRODUCT  // minutes under sanitizers
#ifdef MHLA_FULL_PRODUCT
  check<BFloat16, 128, 128>("video", Video<>{.blocks = {.grid = {3, 5, 7}, .block = {2, 3, 4}}},
                            {1, 2, 2, 105, 105});
#endif
  check<Half, 128, 128>("video with a rotation",
                        Video<MixedKeySum, AxialRotary>{
                            .blocks = {.grid = {3, 5, 7}, .block = {2, 3, 4}}, .scale = 0.5},
                        {1, 1, 1, 105, 105});
#ifdef MHLA_FULL_PRODUCT
  check<BFloat16, 72, 72>("image with a rotation",
                          Image<Unnormalized, AxialRotary, Identity>{
                              .blocks = {.grid = {7, 9}, .block = {4, 3}}, .scale = 0.5},
                          {1, 2, 2, 63, 63});
#endif
  check<BFloat16, 96, 96>(
      "a map of the user's",
      Line<Bidirectional, MixedKeySum, HalfSplitRotary, Cube>{.blocks = {.block = 20}},
      {1, 1, 1, 50, 50});
  // What is read out takes the place of features, but is half as wide.
  check<BFloat16, 256, 256>("long rows, more tiles than slots", Line<>{.blocks = {.block = 130}},
                            {1, 1, 1, 130, 130});
#endif
}

TEST_CASE("fused: forward, causal blocks", "[cuda]") {
  check<BFloat16, 64, 64>("own tokens", Line<Causal>{.blocks = {.block = 20}}, {1, 1, 1, 50, 50});
#ifndef MHLA_SMALL_PRODUCT  // minutes under sanitizers
#ifdef MHLA_FULL_PRODUCT
  check<Half, 128, 128>("own tokens, 150 in a block", Line<Causal>{.blocks = {.block = 150}},
                        {1, 2, 1, 170, 170});
#endif
  check<BFloat16, 128, 256>(
      "a rotation",
      Line<Causal, Unnormalized, HalfSplitRotary, Identity>{.blocks = {.block = 30}, .scale = 0.1},
      {1, 1, 1, 70, 70});
#ifdef MHLA_FULL_PRODUCT
  check<Half, 256, 256>("long rows", Line<Causal>{.blocks = {.block = 40}}, {1, 1, 1, 60, 60});
#endif
  check<BFloat16, 72, 72>("whole blocks", Line<BlockCausal>{.blocks = {.block = 20}},
                          {1, 2, 1, 50, 50});
#endif
}

TEST_CASE("fused: forward, heads that share", "[cuda]") {
  // Groups of query heads; a matrix for every head; keys of another length.
#ifndef MHLA_SMALL_PRODUCT  // minutes under sanitizers
  check<BFloat16, 64, 64>("groups", Line<Causal>{.blocks = {.block = 20}}, {2, 4, 2, 50, 50});
  check<BFloat16, 64, 64>("matrices", Line<Causal>{.blocks = {.block = 20}},
                          {1, 4, 2, 50, 50, 0, 0, 4});
  check<Half, 64, 64>("matrices", Line<>{.blocks = {.block = 20}}, {2, 2, 1, 50, 50, 0, 0, 2});
#endif
  check<BFloat16, 64, 64>("cross", Line<>{.blocks = {.block = 20}, .key_blocks = {.block = 9}},
                          {1, 2, 1, 50, 31});
}

TEST_CASE("fused: forward, packed and padded batches", "[cuda]") {
  const std::vector<std::int32_t> offsets = {0, 1, 34, 34, 80};
  const Line<Causal> causal{.blocks = {.block = 20}};
  check<BFloat16, 64, 64>("packed", packed(causal, offsets), {1, 2, 1, 80, 80, 0, 0, 1, 3, 3});
#if defined(MHLA_TEST_ALL_CASES) && !defined(MHLA_SMALL_PRODUCT)
  const Line<> line{.blocks = {.block = 20}};
  check<BFloat16, 64, 64>("packed", packed(line, offsets), {1, 2, 1, 80, 80, 0, 0, 2, 4, 5});
#endif
  HostTensor<std::uint8_t, 2> mask(2, 50);
  for (Index n = 0; n < 2; ++n)
    for (Index t = 0; t < 50; ++t) mask(n, t) = (t + n) % 4 == 0 || t > 40 ? 0 : 1;
  check<BFloat16, 64, 64>("padded", padded(causal, mask.view()), {2, 2, 1, 50, 50});
#if defined(MHLA_TEST_ALL_CASES) && !defined(MHLA_SMALL_PRODUCT)
  check<Half, 64, 64>("padded", padded(line, mask.view()), {2, 2, 1, 50, 50});
#endif
}

// Rows that do not begin at multiples of 16 bytes, and elements that are not neighbours.
TEST_CASE("fused: forward, tensors of any strides", "[cuda]") {
  const Line<Causal> attention{.blocks = {.block = 20}};
  const auto x = operands_of<BFloat16>(attention, {2, 2, 1, 50, 50, 64, 64});
  const auto expected = forward<BFloat16, 64, 64>(attention, x, x.q, x.k, x.v);
  for (const Index step : {1, 2}) {
    const auto scattered = [step](const HostTensor<BFloat16, 4>& from) {
      // A row more than it needs, so that rows drift against multiples of 16 bytes.
      HostTensor<BFloat16, 4> to(from.extent(0), from.extent(1), from.extent(2),
                                 step * from.extent(3) + 1);
      for (Index n = 0; n < from.extent(0); ++n)
        for (Index h = 0; h < from.extent(1); ++h)
          for (Index t = 0; t < from.extent(2); ++t)
            for (Index c = 0; c < from.extent(3); ++c) to(n, h, t, step * c) = from(n, h, t, c);
      return to;
    };
    const auto view = [&](const HostTensor<BFloat16, 4>& of, const HostTensor<BFloat16, 4>& like) {
      TensorView<const BFloat16, 4> v = of.view();
      v.extent[3] = like.extent(3);
      v.stride[3] = step;
      return v;
    };
    const auto q = scattered(x.q), k = scattered(x.k), v = scattered(x.v);
    CHECK(call::bitwise_equal(
        forward<BFloat16, 64, 64>(attention, x, view(q, x.q), view(k, x.k), view(v, x.v)).view(),
        expected.view()));
  }
}

#ifndef MHLA_SMALL_PRODUCT  // minutes under sanitizers
TEST_CASE("fused: forward, nothing of a later token reaches an earlier one", "[cuda]") {
  fused_call::check_later_tokens_reach_nothing<Half>(
      Line<Causal>{.blocks = {.block = 40}}, 128, {29, 49},
      [](const auto& attention, const auto& x) {
        return forward<Half, 128, 128>(attention, x, x.q, x.k, x.v);
      });
}
#endif

TEST_CASE("fused: forward, key sums and matrices have more than 16 bits", "[cuda]") {
  fused_call::check_key_sums_and_matrices_are_not_rounded([](const auto& attention, const auto& x) {
    return forward<BFloat16, 64, 64>(attention, x, x.q, x.k, x.v);
  });
}
