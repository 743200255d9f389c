// SPDX-License-Identifier: MIT
// The kernels of the backward pass through 16-bit summaries, their own source on the machine that
// stands in for a GPU, against the oracle in double, which rounds nothing but the inputs. Values
// have a mean that is not 0: then large terms of a normalized gradient cancel.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/cuda/paths/summaries.hpp>
#include <mhla/packed.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cuda/fused_backward.hpp"
#include "tests/cuda/fused_call.hpp"
#include "tests/cuda/traffic.hpp"

namespace {

using namespace mhla;
using call::Operands;
using fused_backward::Backward;
using fused_backward::Request;
using mhla::testing::HostTensor;

// Relative RMS errors.
struct Bounds {
  double query, key, value, mix;
};
template <class T>
constexpr Bounds bounds =
    std::is_same_v<T, BFloat16> ? Bounds{6e-3, 4e-3, 4e-3, 3e-3} : Bounds{1e-3, 1e-3, 1e-3, 1e-3};

template <class T, class V>
Operands<T> operands_of(const V& attention, const Shape& shape) {
  Operands<T> x = call::operands<T>(attention, shape);
  mhla::testing::for_each_element([](T& v) { store(v, load(v) + 1.0f); }, x.v.view());
  return x;
}

template <class T>
void fill(call::Gradients<T>& gradients, float value) {
  const auto set = [&](auto& tensor) {
    mhla::testing::for_each_element([&](T& e) { store(e, value); }, tensor.view());
  };
  set(gradients.query);
  set(gradients.key);
  set(gradients.value);
}

template <class T>
Request<T> request_of(const Operands<T>& x, call::Gradients<T>& gradients) {
  return {x.q.view(),
          x.k.view(),
          x.v.view(),
          x.dy.view(),
          gradients.query.view(),
          gradients.key.view(),
          gradients.value.view()};
}

/// Runs all kernels.
template <class T, int KeyDim, int ValueDim, class V>
void run(const V& attention, const Operands<T>& x, const Request<T>& request,
         HostTensor<float, 3>* dmix = nullptr) {
  Backward<V, T, KeyDim, ValueDim> backward(attention, checked_problem(attention, x.shape()),
                                            x.mix.view(), request);
  backward.run();
  if (dmix == nullptr) return;
  CHECK(backward.numbers_written());
  mhla::testing::for_each_element([](float& e) { e = 0; }, dmix->view());
  const std::vector<double> sums = backward.grad_mixing();
  const auto& e = backward.extents();
  for (Index h = 0; h < e.mix_heads; ++h)
    for (Index i = 0; i < e.mix_rows; ++i)
      for (Index b = 0; b < e.mix_columns; ++b)
        (*dmix)(h, i, b) = static_cast<float>(
            sums[static_cast<std::size_t>((h * e.mix_rows + i) * e.mix_columns + b)]);
}
/// All gradients, which were NaN before.
template <class T, int KeyDim, int ValueDim, class V>
call::Gradients<T> run(const V& attention, const Operands<T>& x) {
  call::Gradients<T> gradients(x);
  fill(gradients, std::numeric_limits<float>::quiet_NaN());
  run<T, KeyDim, ValueDim>(attention, x, request_of(x, gradients), &gradients.mix);
  return gradients;
}

/// The oracle's; of packed and padded batches, which it does not know, the CPU backend's.
template <class V>
call::Gradients<double> expected_gradients(const V& attention, const Operands<double>& x) {
  if constexpr (
      requires { attention.offsets; } || requires { attention.masks; }) {
    call::Gradients<double> gradients(x);
    const SerialExecutor serial;
    const Workspace workspace(backward_workspace_size<double>(attention, x.shape(), serial));
    backward_into(attention, serial, x.q.view(), x.k, x.v, x.mix, x.dy, gradients.views(),
                  Update::overwrite, workspace);
    return gradients;
  } else {
    return call::oracle_backward(attention, x);
  }
}

template <class T, class U, int Rank>
void check_near(const char* what, const HostTensor<T, Rank>& actual,
                const HostTensor<U, Rank>& expected, double bound) {
  const auto result = mhla::testing::compare(actual.view(), expected.view());
  INFO(what << ": " << result.report());
  CHECK(result.rms_ratio <= bound);
}
template <class T>
void check_near(const call::Gradients<T>& actual, const call::Gradients<double>& expected) {
  check_near("dq", actual.query, expected.query, bounds<T>.query);
  check_near("dk", actual.key, expected.key, bounds<T>.key);
  check_near("dv", actual.value, expected.value, bounds<T>.value);
  check_near("dmix", actual.mix, expected.mix, bounds<T>.mix);
}
template <class T>
bool bitwise_equal(const call::Gradients<T>& a, const call::Gradients<T>& b) {
  return call::bitwise_equal(a.query.view(), b.query.view()) &&
         call::bitwise_equal(a.key.view(), b.key.view()) &&
         call::bitwise_equal(a.value.view(), b.value.view()) &&
         call::bitwise_equal(a.mix.view(), b.mix.view());
}

template <class T, int KeyDim, int ValueDim, class V>
void check(const char* name, const V& attention, Shape shape) {
  shape.key_dim = KeyDim;
  shape.value_dim = ValueDim;
  const Operands<T> x = operands_of<T>(attention, shape);
  CAPTURE(name, KeyDim, ValueDim);
  const call::Gradients<T> gradients = run<T, KeyDim, ValueDim>(attention, x);
  check_near(gradients, expected_gradients(attention, call::converted<double>(x)));

  if (!fused_call::runs_again()) return;
  CHECK(bitwise_equal(gradients, run<T, KeyDim, ValueDim>(attention, x)));
}

using fused_call::Image;
using fused_call::Line;
using fused_call::Video;

// The gate compiles more kernels, whose source is the same.
constexpr int dim_of_video = backend::runs_all_cases ? 128 : 72;
constexpr int key_dim_of_rotation = backend::runs_all_cases ? 64 : 128;
constexpr int value_dim_of_rotation = backend::runs_all_cases ? 128 : 256;
using OfRotation = std::conditional_t<backend::runs_all_cases, Half, BFloat16>;

}  // namespace

TEST_CASE("fused gradients: blocks of one, two and three axes", "[cuda]") {
  check<BFloat16, 64, 64>("line", Line<>{.blocks = {.block = 20}}, {1, 1, 1, 50, 50});
  check<BFloat16, 32, 32>("more tokens than a tile",
                          Line<Bidirectional, Unnormalized>{.blocks = {.block = 150}},
                          {1, 1, 1, 200, 200});
  check<BFloat16, 72, 72>("image", Image<>{.blocks = {.grid = {7, 9}, .block = {4, 3}}},
                          {2, 1, 1, 63, 63});
#ifdef MHLA_FULL_PRODUCT
  check<BFloat16, 96, 96>("image with a rotation",
                          Image<Unnormalized, AxialRotary, Identity>{
                              .blocks = {.grid = {7, 9}, .block = {4, 3}}, .scale = 0.5},
                          {1, 2, 2, 63, 63});
#endif
  check<BFloat16, dim_of_video, dim_of_video>(
      "video with a rotation",
      Video<MixedKeySum, AxialRotary, Relu>{.blocks = {.grid = {3, 5, 6}, .block = {2, 3, 4}},
                                            .scale = 0.5},
      {1, 1, 1, 90, 90});
  check<OfRotation, 64, 128>(
      "line with a rotation",
      Line<Bidirectional, MixedKeySum, HalfSplitRotary>{.blocks = {.block = 20}, .scale = 0.5},
      {1, 1, 1, 50, 50});
}

TEST_CASE("fused gradients: causal blocks", "[cuda]") {
  check<BFloat16, 64, 64>("own tokens", Line<Causal>{.blocks = {.block = 20}}, {1, 1, 1, 50, 50});
#ifdef MHLA_FULL_PRODUCT
  check<BFloat16, 72, 72>("100 in a block", Line<Causal>{.blocks = {.block = 100}},
                          {1, 2, 1, 150, 150, 0, 0, 2});
#endif
  check<Half, 64, 128>("150 in a block", Line<Causal>{.blocks = {.block = 150}},
                       {1, 1, 1, 170, 170});
  check<BFloat16, key_dim_of_rotation, value_dim_of_rotation>(
      "a rotation",
      Line<Causal, Unnormalized, HalfSplitRotary>{.blocks = {.block = 80}, .scale = 0.1},
      {1, 1, 1, 100, 100});
#ifdef MHLA_FULL_PRODUCT
  check<Half, 72, 64>(
      "a rotation of features with a sign",
      Line<Causal, Unnormalized, HalfSplitRotary, Identity>{.blocks = {.block = 30}, .scale = 0.1},
      {1, 2, 2, 100, 100});
  check<BFloat16, 128, 256>("wide values", Line<Causal>{.blocks = {.block = 40}},
                            {1, 1, 1, 70, 70});
#endif
  check<BFloat16, 256, 256>("wide", Line<Causal>{.blocks = {.block = 40}}, {1, 1, 1, 70, 70});
  check<BFloat16, 32, 32>("whole blocks", Line<BlockCausal>{.blocks = {.block = 20}},
                          {1, 1, 1, 50, 50});
}

TEST_CASE("fused gradients: heads that share", "[cuda]") {
  check<BFloat16, 64, 64>("groups", Line<Causal>{.blocks = {.block = 20}}, {2, 4, 2, 50, 50});
  check<BFloat16, 64, 64>("matrices", Line<Causal>{.blocks = {.block = 20}},
                          {1, 4, 2, 50, 50, 0, 0, 4});
  check<Half, 64, 64>("matrices", Line<>{.blocks = {.block = 20}}, {2, 2, 1, 50, 50, 0, 0, 2});
  check<BFloat16, 64, 64>("cross", Line<>{.blocks = {.block = 20}, .key_blocks = {.block = 9}},
                          {1, 2, 1, 50, 31});
}

TEST_CASE("fused gradients: packed and padded batches", "[cuda]") {
  const std::vector<std::int32_t> offsets = {0, 1, 34, 34, 80};
  const Line<Causal> causal{.blocks = {.block = 20}};
  check<BFloat16, 64, 64>("packed", packed(causal, offsets), {1, 2, 1, 80, 80, 0, 0, 1, 3, 3});
  // A short sequence adds its own tokens and blocks.
  const auto bytes_of = [](const std::vector<std::int32_t>& starts) {
    const auto variant = packed(Line<Causal>{.blocks = {.block = 1}}, starts);
    const Index tokens = starts.back();
    const auto problem = checked_problem(variant, {1, 8, 8, tokens, tokens, 64, 64, 1, 512, 512});
    using Plan = cuda::fused::SummaryPlan<std::remove_const_t<decltype(variant)>, BFloat16>;
    return cuda::plan_size<Plan>(variant, problem, 1, true);
  };
  CHECK(bytes_of({0, 512, 513}) < bytes_of({0, 512}) * 11 / 10);
  HostTensor<std::uint8_t, 2> mask(2, 50);
  for (Index n = 0; n < 2; ++n)
    for (Index t = 0; t < 50; ++t) mask(n, t) = (t + n) % 4 == 0 || t > 40 ? 0 : 1;
  const auto masked = [&](const auto& attention) {
    const auto variant = padded(attention, mask.view());
    auto x = operands_of<BFloat16>(variant, {2, 2, 1, 50, 50, 64, 64});
    call::Gradients<BFloat16> gradients(x);
    fill(gradients, 0);  // rows of masked tokens are not written
    run<BFloat16, 64, 64>(variant, x, request_of(x, gradients), &gradients.mix);
    check_near(gradients, expected_gradients(variant, call::converted<double>(x)));
  };
  masked(causal);
#ifdef MHLA_TEST_ALL_CASES
  masked(Line<>{.blocks = {.block = 20}});
#endif
}

// A token of k and v is seen by later queries only, one of q and dy reads earlier keys only. No bit
// of the others changes.
TEST_CASE("fused gradients: no token meets one that does not pair with it", "[cuda]") {
  const Line<Causal> attention{.blocks = {.block = 90}};
  const auto x = fused_call::cancelling_operands_of<Half>(attention, {1, 1, 1, 100, 100, 64, 128});
  const auto gradients_of = [&](const Operands<Half>& of) {
    call::Gradients<Half> gradients(of);
    run<Half, 64, 128>(attention, of, request_of(of, gradients));
    return gradients;
  };
  const auto clean = gradients_of(x);
  for (const auto& [bad, token] : {std::pair{std::numeric_limits<float>::quiet_NaN(), Index{29}},
                                   {std::numeric_limits<float>::infinity(), Index{70}}})
    for (const bool in_row : {false, true}) {
      CAPTURE(bad, token, in_row);
      auto spoilt = x;
      store((in_row ? spoilt.v : spoilt.k)(0, 0, token, 3), bad);
      const auto of_keys = gradients_of(spoilt);
      spoilt = x;
      store((in_row ? spoilt.dy : spoilt.q)(0, 0, token, 3), bad);
      const auto of_queries = gradients_of(spoilt);
      const auto different = [](const HostTensor<Half, 4>& a, const HostTensor<Half, 4>& b,
                                Index first, Index end) {
        Index count = 0;
        for (Index t = first; t < end; ++t)
          for (Index c = 0; c < a.extent(3); ++c) count += a(0, 0, t, c).bits != b(0, 0, t, c).bits;
        return count;
      };
      CHECK(different(of_keys.query, clean.query, 0, token) == 0);
      CHECK(different(of_keys.query, clean.query, token, token + 1) > 0);
      CHECK(different(of_queries.key, clean.key, token + 1, 100) == 0);
      CHECK(different(of_queries.value, clean.value, token + 1, 100) == 0);
      CHECK(different(of_queries.value, clean.value, token, token + 1) > 0);
    }
}

TEST_CASE("fused gradients: a thread block that summarizes several blocks gives the same bits",
          "[cuda]") {
  // 6 blocks of queries of two heads: 4 and 2 of them, or all; the last one is short.
  const auto check_several = [](const auto& attention) {
    const auto x = operands_of<BFloat16>(attention, {2, 2, 1, 110, 110, 64, 64});
    call::Gradients<BFloat16> gradients(x);
    using V = std::remove_cvref_t<decltype(attention)>;
    Backward<V, BFloat16, 64, 64> backward(attention, checked_problem(attention, x.shape()),
                                           x.mix.view(), request_of(x, gradients));
    const auto several = [&](const auto& made, const auto& sums_of) {
      auto body = made();
      const Index items = backward.extents().keys.batch;
      cuda::fused::summarize(backward.device(), items, body);
      const auto planes = sums_of().planes;
      const auto sums = sums_of().sums;
      for (const int at_once : {2, 4, 6}) {
        CAPTURE(at_once);
        body.blocks_at_once = at_once;
        backward.poison(sums_of());
        cuda::fused::summarize(backward.device(), items, body);
        CHECK(std::memcmp(sums_of().planes.data(), planes.data(),
                          planes.size() * sizeof(BFloat16)) == 0);
        CHECK(std::memcmp(sums_of().sums.data(), sums.data(), sums.size() * 4) == 0);
      }
    };
    several([&] { return backward.summarize(); }, [&]() -> auto& { return backward.of_keys(); });
    backward.mix();
    cuda::fused::run_over_items(backward.device(), 2, backward.query_gradient());
    several([&] { return backward.summarize_gradient(); },
            [&]() -> auto& { return backward.of_queries(); });
  };
  check_several(Line<>{.blocks = {.block = 20}});
  check_several(Line<Bidirectional, MixedKeySum, HalfSplitRotary>{.blocks = {.block = 20}});

  using cuda::fused::summaries_at_once;
  CHECK(summaries_at_once(1, 100000) == 4);
  CHECK(summaries_at_once(2, 100000) == 2);
  CHECK(summaries_at_once(3, 100000) == 1);
  CHECK(summaries_at_once(1, 4 * 8 * 132) == 4);
  CHECK(summaries_at_once(1, 4 * 8 * 132 - 1) == 2);
  CHECK(summaries_at_once(1, 2 * 8 * 132 - 1) == 1);
}

namespace {

// Of what kernels read: tables, masks and matrices.
constexpr double table_share = 0.85;

/// What each kernel reads and writes of the tensors and summaries.
template <int KeyDim, int ValueDim, class V>
void check_traffic(const char* name, const V& attention, Shape shape, Update update) {
  CAPTURE(name);
  shape.key_dim = KeyDim;
  shape.value_dim = ValueDim;
  const auto x = operands_of<BFloat16>(attention, shape);
  call::Gradients<BFloat16> gradients(x);
  using B = Backward<V, BFloat16, KeyDim, ValueDim>;
  constexpr bool own = B::own, normalizes = B::normalizes;
  const Index accumulated = update == Update::accumulate ? 1 : 0;
  const Index summary_slices = ValueDim / cuda::fused::summary_slice(ValueDim);
  for (const std::string left_out : {"", "dq, dk", "dv"}) {
    CAPTURE(left_out);
    const bool wanted = left_out != "dq, dk", values_wanted = left_out != "dv";
    auto request = request_of(x, gradients);
    request.update = update;
    if (!wanted) request.dq.data = request.dk.data = nullptr;
    if (!values_wanted) request.dv.data = nullptr;
    B backward(attention, checked_problem(attention, x.shape()), x.mix.view(), request);
    const auto& e = backward.extents();
    const traffic::Tokens queries{e.queries.table, e.queries.batch, B::Summarize::rows};
    const traffic::Tokens keys{e.keys.table, e.keys.batch, B::Summarize::rows};
    const Index q_tokens = shape.heads * queries.all(), k_tokens = shape.kv_heads * keys.all();
    const Index summary = B::parts * KeyDim * ValueDim;
    traffic::Watch watch;
    watch("q", x.q);
    watch("k", x.k);
    watch("v", x.v);
    watch("dy", x.dy);
    watch("dq", gradients.query);
    watch("dk", gradients.key);
    watch("dv", gradients.value);
    backward.watch(watch);
    // Sums of summaries are read, or written, `times` times.
    const auto check_sums = [&](const std::string& of, Index read, Index written, Index count) {
      watch.check(of, read * count * summary, written * count * summary);
      const Index sums = normalizes ? count * KeyDim : 0;
      watch.check(of + " sums", read * sums, written * sums);
    };
    const Index pairs = shape.heads * keys.of_pairs(false);
    const Index q_pairs = shape.heads * queries.of_pairs(true);

    cuda::fused::summarize(backward.device(), e.keys.batch, backward.summarize());
    watch.check("k", summary_slices * k_tokens * KeyDim, 0);
    watch.check("v", k_tokens * ValueDim, 0);
    check_sums("S", 0, 1, e.key_summaries());
    watch.check_rest(table_share);

    backward.mix();
    cuda::fused::run_over_items(backward.device(), e.queries.batch, backward.query_gradient());
    watch.check("q", (own && wanted ? 2 : 1) * q_tokens * KeyDim, 0);
    watch.check("dy", q_tokens * ValueDim, 0);
    watch.check("dq", wanted ? accumulated * q_tokens * KeyDim : 0, wanted ? q_tokens * KeyDim : 0);
    // Every tile of a block reads its summary and, if causal, the tiles up to it: with a normalizer
    // first for the denominators, then again, but for the last.
    const Index again = normalizes && wanted ? pairs - shape.heads * keys.all() : 0;
    watch.check("k", own ? (pairs + again) * KeyDim : 0, 0);
    watch.check("v", own ? (pairs + again) * ValueDim : 0, 0);
    check_sums("S~", queries.tiles_of_block(), 0, shape.heads * queries.blocks());
    watch.check_rest(table_share);

    cuda::fused::summarize(backward.device(), e.queries.batch, backward.summarize_gradient());
    watch.check("q", summary_slices * q_tokens * KeyDim, 0);
    watch.check("dy", q_tokens * ValueDim, 0);
    check_sums("dS~", 0, 1, e.mixed_summaries());
    watch.check_rest(table_share);

    backward.mix_gradient();
    cuda::fused::run_over_items(backward.device(), e.keys.batch, backward.key_gradient());
    // Features take the keys' place, and the keys' last own slice of dy stays for dv.
    constexpr Index slices = B::KeyGradient::own_slices;
    watch.check("k", 2 * k_tokens * KeyDim, 0);
    watch.check("v", k_tokens * ValueDim, 0);
    watch.check("q", own ? q_pairs * KeyDim : 0, 0);
    watch.check("dy", own ? q_pairs * (2 * slices - 1) * ValueDim / slices : 0, 0);
    const Index of_dk = wanted ? k_tokens * KeyDim : 0;
    const Index of_dv = values_wanted ? k_tokens * ValueDim : 0;
    watch.check("dk", accumulated * of_dk, of_dk);
    watch.check("dv", accumulated * of_dv, of_dv);
    check_sums("dS", keys.tiles_of_block(), 0, e.key_summaries());
    watch.check_rest(table_share);
  }
}

}  // namespace

TEST_CASE("fused gradients: what kernels read and write", "[cuda]") {
  check_traffic<64, 64>("line", Line<>{.blocks = {.block = 20}}, {2, 2, 1, 50, 50},
                        Update::overwrite);
  check_traffic<128, 256>(
      "slices", Line<Causal, Unnormalized, HalfSplitRotary>{.blocks = {.block = 80}, .scale = 0.1},
      {1, 2, 1, 100, 100, 0, 0, 2}, Update::overwrite);
  check_traffic<64, 64>("long blocks", Line<Causal>{.blocks = {.block = 150}}, {1, 1, 1, 170, 170},
                        Update::accumulate);
  check_traffic<72, 72>("video",
                        Video<MixedKeySum, AxialRotary, Relu>{
                            .blocks = {.grid = {3, 5, 6}, .block = {2, 3, 4}}, .scale = 0.5},
                        {1, 1, 1, 90, 90}, Update::accumulate);
  HostTensor<std::uint8_t, 2> mask(2, 50);
  for (Index n = 0; n < 2; ++n)
    for (Index t = 0; t < 50; ++t) mask(n, t) = (t + n) % 4 == 0 || t > 40 ? 0 : 1;
  check_traffic<64, 64>("padded", padded(Line<Causal>{.blocks = {.block = 20}}, mask.view()),
                        {2, 2, 1, 50, 50}, Update::overwrite);
}
