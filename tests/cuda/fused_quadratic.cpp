// SPDX-License-Identifier: MIT
// Attention as pairs of tokens, its kernels' own source on the machine that stands in for a GPU,
// against the oracle in double, which rounds nothing but the inputs.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/cuda/paths/quadratic.cuh>
#include <mhla/policy/batch_layout.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cuda/fused_call.hpp"
#include "tests/cuda/machine.hpp"
#include "tests/cuda/traffic.hpp"

namespace {

using namespace mhla;
using call::Gradients;
using call::Operands;
using namespace fused_call;
using mhla::testing::HostTensor;

// Relative RMS errors: of y mostly those of rounding it, 1.7e-3 and 2e-4.
struct Bounds {
  double y, query, key, value, mix;
};
template <class T>
constexpr Bounds bounds = std::is_same_v<T, BFloat16> ? Bounds{4e-3, 6e-3, 4e-3, 4e-3, 3e-3}
                                                      : Bounds{1e-3, 1e-3, 1e-3, 1e-3, 1e-3};

/// The views a call reads: of the operands, unless a test has others.
template <class T>
struct Views {
  TensorView<const T, 4> q, k, v, dy;

  Views(const Operands<T>& x)  // NOLINT: stands for its views
      : q(x.q.view()), k(x.k.view()), v(x.v.view()), dy(x.dy.view()) {}
};

/// Head dimensions, also such as no program can ask for.
template <int KeyDim, int ValueDim>
struct Dims {
  static constexpr Index key_dim = KeyDim;
  static constexpr Index value_dim = ValueDim;
};

/// Memory that a call finds full of NaN.
template <class V>
Workspace workspace_of(const V& attention, const Problem& problem, bool backward) {
  return fused_call::poisoned_workspace(
      cuda::plan_size<cuda::fused::PairPlan<V>>(attention, problem, problem.shape.batch, backward));
}

// Of what kernels read: tables, masks and matrices.
constexpr double table_share = 0.95;

/// Tokens that tiles read, in items of the batch and heads that are all alike but for masks. Absent
/// entries see, and are seen, like tokens.
template <class V>
struct PairTraffic {
  const cuda::Extents<V>& e;
  cuda::fused::PairTiles tiles;

  const cuda::BlockTable& table(bool of_queries) const {
    return of_queries ? e.queries.table : e.keys.table;
  }
  Index entries(bool of_queries) const {
    return table(of_queries).blocks * table(of_queries).block_tokens;
  }
  Index tokens(bool of_queries) const {
    return traffic::Tokens{table(of_queries), e.queries.batch, tiles.own}.all();
  }
  bool present(bool of_queries, Index item, Index entry) const {
    return table(of_queries).place(item, entry).token >= 0;
  }
  Index sequence_begin(bool of_queries, Index entry) const {
    const Index block = entry / table(of_queries).block_tokens;
    return mhla::is_packed<V> ? block - table(of_queries).mix_rows[block] : 0;
  }
  bool sees(Index query, Index key) const {
    if (mhla::is_packed<V> && sequence_begin(true, query) != sequence_begin(false, key))
      return false;
    if (sight_of<V> == Sight::past_tokens) return key <= query;
    return sight_of<V> == Sight::all ||
           key / e.keys.table.block_tokens <= query / e.queries.table.block_tokens;
  }
  /// Keys that tiles of queries read, or queries that tiles of keys do: all that an entry sees.
  Index read_by(bool queries_read) const {
    Index count = 0;
    const Index own_rows = queries_read ? tiles.own : tiles.own_of_two();
    for (Index first = 0; first < entries(queries_read); first += own_rows)
      for (Index other = 0; other < entries(!queries_read); ++other) {
        bool reads = false;
        for (Index own = first; own < std::min(first + own_rows, entries(queries_read)); ++own)
          reads = reads || (queries_read ? sees(own, other) : sees(other, own));
        for (Index item = 0; reads && item < e.queries.batch; ++item)
          count += present(!queries_read, item, other);
      }
    return count;
  }
};

template <class V>
PairTraffic<V> pair_traffic(const cuda::Extents<V>& e, const Shape& shape) {
  constexpr bool twofold = rotates<V> && normalizes<V>;
  return {e, cuda::fused::pair_tiles(shape.key_dim, shape.value_dim, twofold)};
}

template <class T, int KeyDim, int ValueDim, class V>
HostTensor<T, 4> forward(const V& attention, const Operands<T>& x, const Views<T>& views) {
  HostTensor<T, 4> y = x.dy;
  poison(y);
  const Problem problem = checked_problem(attention, x.shape());
  const Workspace workspace = workspace_of(attention, problem, false);
  traffic::Watch watch;
  watch("q", views.q);
  watch("k", views.k);
  watch("v", views.v);
  watch("y", y);
  const CudaDevice device = machine::device();
  cuda::QuadraticPath::forward<Dims<KeyDim, ValueDim>, V, T>(
      {device, attention, problem, {views.q, views.k, views.v, x.mix.view()}, y.view(), workspace});
  Arena arena(workspace);
  const cuda::Extents<V> extents(arena, attention, problem, problem.shape.batch);
  const auto moved = pair_traffic(extents, problem.shape);
  const Index heads = problem.shape.heads;
  watch.check("q", heads * moved.tokens(true) * KeyDim, 0);
  watch.check("k", heads * moved.read_by(true) * KeyDim, 0);
  watch.check("v", heads * moved.read_by(true) * ValueDim, 0);
  watch.check("y", 0, heads * moved.tokens(true) * ValueDim);
  watch.check_rest(table_share);
  if constexpr (requires { attention.masks; })
    cuda::clear_masked(machine::device(), attention.masks.query, y.view());
  return y;
}
template <class T, int KeyDim, int ValueDim, class V>
void backward_to(const V& attention, const Operands<T>& x, const Views<T>& views,
                 const GradientViews<T>& gradients, Update update) {
  const Problem problem = checked_problem(attention, x.shape());
  const Workspace workspace = workspace_of(attention, problem, true);
  traffic::Watch watch;
  watch("q", views.q);
  watch("k", views.k);
  watch("v", views.v);
  watch("dy", views.dy);
  const auto watch_wanted = [&](const std::string& name, const auto& gradient) {
    if (gradient.wanted) watch(name, gradient.view);
  };
  watch_wanted("dq", gradients.query);
  watch_wanted("dk", gradients.key);
  watch_wanted("dv", gradients.value);
  const CudaDevice device = machine::device();
  cuda::QuadraticPath::backward<Dims<KeyDim, ValueDim>, V, T>(
      {device,
       attention,
       problem,
       {views.q, views.k, views.v, x.mix.view()},
       views.dy,
       gradients,
       update,
       workspace});
  Arena arena(workspace);
  const cuda::Extents<V> extents(arena, attention, problem, problem.shape.batch);
  const auto moved = pair_traffic(extents, problem.shape);
  const Index heads = problem.shape.heads, kv_heads = problem.shape.kv_heads;
  const Index queries = heads * moved.tokens(true), keys = kv_heads * moved.tokens(false);
  const bool dq = gradients.query.wanted, dk = gradients.key.wanted, dv = gradients.value.wanted;
  const bool dmix = gradients.mix.wanted;
  // Tiles of queries: all keys for the denominators, and again for dq and dm; q at first for
  // scores, and at the end for dq.
  const Index passes = (normalizes<V> ? 1 : 0) + (dq || dmix ? 1 : 0);
  Index q_read = ((normalizes<V> || dmix ? 1 : 0) + (dq ? 1 : 0)) * queries;
  Index dy_read = passes > 0 ? queries : 0;
  Index k_read = passes * heads * moved.read_by(true), v_read = k_read;
  // Tiles of keys.
  if (dk || dv) {
    const Index seeing = heads * moved.read_by(false);
    q_read += seeing;
    dy_read += seeing;
    k_read += (dk ? 2 : 1) * keys;
    v_read += keys;
  }
  watch.check("q", q_read * KeyDim, 0);
  watch.check("dy", dy_read * ValueDim, 0);
  watch.check("k", k_read * KeyDim, 0);
  watch.check("v", v_read * ValueDim, 0);
  const Index added = update == Update::accumulate ? 1 : 0;
  if (dq) watch.check("dq", added * queries * KeyDim, queries * KeyDim);
  if (dk) watch.check("dk", added * keys * KeyDim, keys * KeyDim);
  if (dv) watch.check("dv", added * keys * ValueDim, keys * ValueDim);
  watch.check_rest(q_read > 0 ? table_share : 1);  // 1 where no gradient is wanted: tables alone
  if constexpr (requires { attention.masks; }) {
    cuda::clear_masked(machine::device(), attention.masks.query, gradients.query.view);
    cuda::clear_masked(machine::device(), attention.masks.key, gradients.key.view);
    cuda::clear_masked(machine::device(), attention.masks.key, gradients.value.view);
  }
}
template <class T, int KeyDim, int ValueDim, class V>
Gradients<T> backward(const V& attention, const Operands<T>& x, const Views<T>& views) {
  Gradients<T> gradients(x);
  poison(gradients.query);
  poison(gradients.key);
  poison(gradients.value);
  poison(gradients.mix);
  backward_to<T, KeyDim, ValueDim>(attention, x, views, gradients.views(), Update::overwrite);
  return gradients;
}

template <class V>
inline constexpr bool is_plain = !requires(const V& v) {
  v.offsets;
}
&&!requires(const V& v) { v.masks; };

/// The oracle's gradients, or the CPU backend's, as expected_forward.
template <class V>
Gradients<double> expected_backward(const V& attention, const Operands<double>& x) {
  if constexpr (is_plain<V>) {
    return call::oracle_backward(attention, x);
  } else {
    Gradients<double> gradients(x);
    const SerialExecutor serial;
    const Workspace workspace(backward_workspace_size<double>(attention, x.shape(), serial));
    backward_into(attention, serial, x.q.view(), x.k, x.v, x.mix, x.dy, gradients.views(),
                  Update::overwrite, workspace);
    return gradients;
  }
}

template <int Rank, class T>
void check_close(const char* what, const HostTensor<T, Rank>& actual,
                 const HostTensor<double, Rank>& expected, double bound) {
  const auto result = mhla::testing::compare(actual.view(), expected.view());
  CAPTURE(what);
  INFO(result.report());
  CHECK(result.rms_ratio <= bound);
}
template <class T>
void check_same_bits(const Gradients<T>& a, const Gradients<T>& b) {
  CHECK(call::bitwise_equal(a.query.view(), b.query.view()));
  CHECK(call::bitwise_equal(a.key.view(), b.key.view()));
  CHECK(call::bitwise_equal(a.value.view(), b.value.view()));
  CHECK(call::bitwise_equal(a.mix.view(), b.mix.view()));
}

template <class T, int KeyDim, int ValueDim, class V>
void check(const char* name, const V& attention, Shape shape) {
  shape.key_dim = KeyDim;
  shape.value_dim = ValueDim;
  CAPTURE(name, KeyDim, ValueDim);
  const Operands<T> x = operands_of<T>(attention, shape);
  const auto y = forward<T, KeyDim, ValueDim, V>(attention, x, x);
  const auto gradients = backward<T, KeyDim, ValueDim, V>(attention, x, x);
  const Operands<double> exact = call::converted<double>(x);
  const auto expected = expected_backward(attention, exact);
  check_close("y", y, expected_forward(attention, exact), bounds<T>.y);
  check_close("dq", gradients.query, expected.query, bounds<T>.query);
  check_close("dk", gradients.key, expected.key, bounds<T>.key);
  check_close("dv", gradients.value, expected.value, bounds<T>.value);
  check_close("dmix", gradients.mix, expected.mix, bounds<T>.mix);

  if (!fused_call::runs_again()) return;
  CHECK(call::bitwise_equal(y.view(), forward<T, KeyDim, ValueDim, V>(attention, x, x).view()));
  check_same_bits(gradients, backward<T, KeyDim, ValueDim, V>(attention, x, x));
}

using Turned = Attention<Identity, Blocks2D, Bidirectional, Unnormalized, AxialRotary>;
using TurnedVideo = Attention<EluPlusOne, Blocks3D, Bidirectional, MixedKeySum, AxialRotary>;
using TurnedSequence = Line<BlockCausal, MixedKeySum, HalfSplitRotary>;

}  // namespace

TEST_CASE("pairs: blocks of one, two and three axes", "[cuda]") {
  check<BFloat16, 64, 64>("line", Line<>{.blocks = {.block = 20}}, {1, 1, 1, 50, 50});
  check<BFloat16, 64, 64>("one token", Line<>{.blocks = {.block = 4}, .normalizer = {.epsilon = 9}},
                          {1, 1, 1, 1, 1});
  check<BFloat16, 32, 32>("more tiles than a ring has", Line<>{.blocks = {.block = 100}},
                          {1, 1, 1, 230, 230});
  check<BFloat16, 64, 64>("eight keys of a block", Line<>{.blocks = {.block = 8}},
                          {1, 2, 1, 150, 150, 0, 0, 2});
  // More blocks than shared memory has room for their weights.
  check<BFloat16, 64, 64>("short blocks", Line<>{.blocks = {.block = 3}}, {1, 1, 1, 80, 80});
  check<BFloat16, 72, 72>("image", Image<>{.blocks = {.grid = {7, 9}, .block = {4, 3}}},
                          {2, 1, 1, 63, 63});
  check<Half, 128, 128>("video", Video<>{.blocks = {.grid = {3, 5, 7}, .block = {2, 3, 4}}},
                        {1, 2, 1, 105, 105});
}

TEST_CASE("pairs: head dimensions, feature maps and rotations", "[cuda]") {
  check<BFloat16, 32, 32>("short rows", Line<>{.blocks = {.block = 20}, .scale = 0.3},
                          {1, 1, 1, 70, 70});
  check<BFloat16, 128, 256>(
      "long values",
      Line<Causal, Unnormalized, HalfSplitRotary, Identity>{.blocks = {.block = 30}, .scale = 0.1},
      {1, 1, 1, 70, 70});
  check<Half, 256, 256>("long rows", Line<>{.blocks = {.block = 25}}, {1, 1, 1, 40, 40});
#ifdef MHLA_FULL_PRODUCT
  check<BFloat16, 72, 72>("turned by two axes", Turned{.blocks = {.grid = {7, 9}, .block = {4, 3}}},
                          {1, 2, 2, 63, 63});
#endif
  check<Half, 64, 64>("turned by two axes",
                      Turned{.blocks = {.grid = {7, 9}, .block = {4, 3}}, .scale = 0.5},
                      {1, 2, 1, 63, 63});
}

// Numerators have features of their own there.
TEST_CASE("pairs: denominators beside a rotation", "[cuda]") {
  check<BFloat16, 64, 64>("video", TurnedVideo{.blocks = {.grid = {3, 5, 7}, .block = {2, 3, 4}}},
                          {1, 2, 1, 105, 105});
  check<Half, 256, 256>(
      "long rows", TurnedVideo{.blocks = {.grid = {3, 4, 4}, .block = {2, 3, 4}}, .scale = 0.5},
      {1, 1, 1, 48, 48});
#ifdef MHLA_FULL_PRODUCT
  check<Half, 128, 256>(
      "long values", TurnedVideo{.blocks = {.grid = {3, 4, 4}, .block = {2, 3, 4}}, .scale = 0.5},
      {1, 1, 1, 48, 48});
  check<Half, 128, 128>(
      "video", TurnedVideo{.blocks = {.grid = {3, 5, 7}, .block = {2, 3, 4}}, .scale = 0.5},
      {1, 1, 1, 105, 105});
#endif
  check<BFloat16, 64, 64>("whole blocks", TurnedSequence{.blocks = {.block = 20}},
                          {1, 2, 2, 90, 90});
}

TEST_CASE("pairs: causal blocks", "[cuda]") {
  const Line<Causal> causal{.blocks = {.block = 20}};
  check<BFloat16, 64, 64>("short blocks", Line<Causal>{.blocks = {.block = 4}}, {1, 1, 1, 70, 70});
  check<BFloat16, 64, 64>("eight keys of a block", Line<Causal>{.blocks = {.block = 16}},
                          {1, 1, 1, 150, 150});
  check<BFloat16, 64, 64>("long blocks", Line<Causal>{.blocks = {.block = 100}},
                          {1, 1, 1, 140, 140});
  check<Half, 64, 64>("Half", causal, {1, 1, 1, 90, 90});
  check<BFloat16, 64, 64>("whole blocks", Line<BlockCausal>{.blocks = {.block = 20}},
                          {1, 2, 1, 90, 90});
#ifdef MHLA_FULL_PRODUCT
  check<Half, 128, 128>("whole blocks", Line<BlockCausal, Unnormalized>{.blocks = {.block = 70}},
                        {1, 1, 1, 100, 100});
#endif
  // A matrix larger than the call needs.
  check<BFloat16, 64, 64>("corner", causal, {1, 1, 1, 70, 70, 0, 0, 1, 6, 5});
}

TEST_CASE("pairs: heads that share, and keys of another length", "[cuda]") {
  const Line<Causal> causal{.blocks = {.block = 20}};
  check<BFloat16, 64, 64>("groups", causal, {2, 4, 2, 50, 50});
  check<BFloat16, 64, 64>("matrices", causal, {2, 4, 2, 70, 70, 0, 0, 4});
  check<BFloat16, 64, 64>("matrices", Line<>{.blocks = {.block = 2}}, {1, 4, 2, 60, 60, 0, 0, 4});
  check<BFloat16, 64, 64>("cross", Line<>{.blocks = {.block = 20}, .key_blocks = {.block = 9}},
                          {2, 2, 1, 80, 31});
  check<BFloat16, 64, 64>("cross", Line<>{.blocks = {.block = 90}, .key_blocks = {.block = 70}},
                          {1, 1, 1, 90, 130});
}

TEST_CASE("pairs: packed and padded batches", "[cuda]") {
  const std::vector<std::int32_t> offsets = {0, 1, 34, 34, 110, 131};
  const auto packed = [&](const auto& attention) {
    return Packed<std::remove_cvref_t<decltype(attention)>, std::int32_t>(
        attention, {offsets.data(), static_cast<Index>(offsets.size())});
  };
  check<BFloat16, 64, 64>("packed", packed(Line<Causal>{.blocks = {.block = 10}}),
                          {1, 2, 1, 131, 131, 0, 0, 1, 8, 8});
  check<BFloat16, 64, 64>("packed", packed(Line<>{.blocks = {.block = 70}}),
                          {1, 2, 1, 131, 131, 0, 0, 2, 2, 3});
#ifdef MHLA_FULL_PRODUCT
  check<BFloat16, 64, 64>("packed", packed(Line<BlockCausal>{.blocks = {.block = 4}}),
                          {1, 1, 1, 131, 131, 0, 0, 1, 19, 20});
#endif
  HostTensor<std::uint8_t, 2> mask(2, 90);
  for (Index n = 0; n < 2; ++n)
    for (Index t = 0; t < 90; ++t) mask(n, t) = (t + n) % 4 == 0 || t > 70 ? 0 : 1;
  const auto padded = [&](const auto& attention) {
    return Padded<std::remove_cvref_t<decltype(attention)>>(attention, {mask.view(), mask.view()});
  };
  check<BFloat16, 64, 64>("padded", padded(Line<Causal>{.blocks = {.block = 20}}),
                          {2, 2, 1, 90, 90});
#ifdef MHLA_FULL_PRODUCT
  check<BFloat16, 64, 64>("padded", padded(Line<>{.blocks = {.block = 7}}), {2, 2, 2, 90, 90});
#endif
}

// Rows that do not begin at multiples of 16 bytes, and elements that are not neighbours.
TEST_CASE("pairs: tensors of any strides", "[cuda]") {
  const Line<Causal> attention{.blocks = {.block = 20}};
  const auto x = operands_of<BFloat16>(attention, {2, 2, 1, 70, 70, 64, 64});
  const auto y = forward<BFloat16, 64, 64>(attention, x, {x});
  const auto gradients = backward<BFloat16, 64, 64>(attention, x, {x});
  using Tensor = HostTensor<BFloat16, 4>;
  for (const Index step : {1, 2}) {
    // A row more than it needs, so that rows drift against multiples of 16 bytes.
    const auto roomy = [&](const Tensor& like) {
      return Tensor(like.extent(0), like.extent(1), like.extent(2), step * like.extent(3) + 1);
    };
    const auto view = [&](Tensor& of, const Tensor& like) {
      TensorView<BFloat16, 4> v = of.view();
      v.extent[3] = like.extent(3);
      v.stride[3] = step;
      return v;
    };
    const auto scattered = [&](const Tensor& from) {
      Tensor to = roomy(from);
      mhla::testing::for_each_element([](BFloat16& a, const BFloat16& b) { a = b; }, view(to, from),
                                      from.view());
      return to;
    };
    Tensor q = scattered(x.q), k = scattered(x.k), v = scattered(x.v), dy = scattered(x.dy);
    Views<BFloat16> views(x);
    views.q = view(q, x.q);
    views.k = view(k, x.k);
    views.v = view(v, x.v);
    views.dy = view(dy, x.dy);
    CHECK(call::bitwise_equal(forward<BFloat16, 64, 64>(attention, x, views).view(), y.view()));

    Tensor dq = roomy(x.q), dk = roomy(x.k), dv = roomy(x.v);
    auto dmix = x.mix;
    backward_to<BFloat16, 64, 64>(attention, x, views,
                                  {view(dq, x.q), view(dk, x.k), view(dv, x.v), dmix.view()},
                                  Update::overwrite);
    CHECK(call::bitwise_equal(view(dq, x.q), gradients.query.view()));
    CHECK(call::bitwise_equal(view(dk, x.k), gradients.key.view()));
    CHECK(call::bitwise_equal(view(dv, x.v), gradients.value.view()));
    CHECK(call::bitwise_equal(dmix.view(), gradients.mix.view()));
    // Gaps are as they were.
    CHECK(dq(0, 0, 0, step * 64).bits == 0);
    CHECK(dv(1, 0, 69, step * 64).bits == 0);
    if (step == 2) CHECK(dk(0, 0, 3, 5).bits == 0);
  }
}

// A tensor's spoilt token changes what sees it, and no bit of the rest.
TEST_CASE("pairs: nothing of a hidden token reaches another", "[cuda]") {
  const auto check_hidden = []<class T>(T, const auto& attention, Index tokens, Shape shape,
                                        const auto& sees) {
    shape.key_dim = shape.value_dim = 64;
    const auto x = fused_call::cancelling_operands_of<T>(attention, shape);
    const auto y = forward<T, 64, 64>(attention, x, {x});
    const auto gradients = backward<T, 64, 64>(attention, x, {x});
    const auto equal = [](const HostTensor<T, 4>& a, const HostTensor<T, 4>& b, Index t) {
      for (Index c = 0; c < 64; ++c)
        if (a(0, 0, t, c).bits != b(0, 0, t, c).bits) return false;
      return true;
    };
    for (const auto& [bad, token] : {std::pair{std::numeric_limits<float>::quiet_NaN(), Index{29}},
                                     {std::numeric_limits<float>::infinity(), tokens - 1}})
      for (int tensor = 0; tensor < 4; ++tensor) {  // q, k, v, dy
        auto spoilt = x;
        HostTensor<T, 4>* const all[] = {&spoilt.q, &spoilt.k, &spoilt.v, &spoilt.dy};
        store((*all[tensor])(0, 0, token, 3), bad);
        const auto z = forward<T, 64, 64>(attention, spoilt, {spoilt});
        const auto other = backward<T, 64, 64>(attention, spoilt, {spoilt});
        const bool of_query = tensor == 0 || tensor == 3;
        CAPTURE(bad, token, tensor);
        Index wrong = 0;
        bool reached = false;
        for (Index t = 0; t < tokens; ++t) {
          // What query t computes, and what of it comes to key t.
          bool query_hit = of_query ? t == token : sees(t, token);
          bool key_hit = false;
          for (Index u = 0; u < tokens; ++u)
            key_hit = key_hit || (sees(u, t) && (of_query ? u == token : sees(u, token)));
          if (!query_hit) wrong += !equal(z, y, t) || !equal(other.query, gradients.query, t);
          if (!key_hit && t != token)
            wrong += !equal(other.key, gradients.key, t) || !equal(other.value, gradients.value, t);
          reached = reached || !equal(other.key, gradients.key, t);
        }
        CHECK(wrong == 0);
        CHECK(reached);
      }
  };
  check_hidden(Half{}, Line<Causal>{.blocks = {.block = 20}}, 70, {1, 1, 1, 70, 70},
               [](Index t, Index s) { return s <= t; });
  check_hidden(BFloat16{}, TurnedSequence{.blocks = {.block = 20}}, 70, {1, 1, 1, 70, 70},
               [](Index t, Index s) { return s / 20 <= t / 20; });
  const std::vector<std::int32_t> offsets = {0, 10, 30, 70};
  const auto sequence = [](Index t) { return t < 10 ? 0 : t < 30 ? 1 : 2; };
  check_hidden(BFloat16{},
               Packed<Line<>, std::int32_t>(Line<>{.blocks = {.block = 10}},
                                            {offsets.data(), static_cast<Index>(offsets.size())}),
               70, {1, 1, 1, 70, 70, 0, 0, 1, 4, 4},
               [&](Index t, Index s) { return sequence(t) == sequence(s); });
}

TEST_CASE("pairs: queries without a weight read 0 and send nothing back", "[cuda]") {
  const Line<Bidirectional, MixedKeySum, NoRotation, Relu> attention{
      .feature_map = {.epsilon = 0}, .blocks = {.block = 20}, .normalizer = {.epsilon = 0}};
  auto x = operands_of<BFloat16>(attention, {1, 1, 1, 50, 50, 64, 64});
  for (Index c = 0; c < 64; ++c) store(x.q(0, 0, 31, c), -1.0f);
  const auto y = forward<BFloat16, 64, 64>(attention, x, {x});
  for (Index c = 0; c < 64; ++c) CHECK(load(y(0, 0, 31, c)) == 0);
  const auto gradients = backward<BFloat16, 64, 64>(attention, x, {x});
  const auto expected = call::oracle_backward(attention, call::converted<double>(x));
  check_close("dk", gradients.key, expected.key, bounds<BFloat16>.key);
  check_close("dv", gradients.value, expected.value, bounds<BFloat16>.value);
  for (Index c = 0; c < 64; ++c) CHECK(load(gradients.query(0, 0, 31, c)) == 0);
}
