// SPDX-License-Identifier: MIT
// Stages on any split of a sequence's blocks make what the whole pass makes, bit for bit.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/stages/backend.hpp"

namespace {

using backend::Stages;
using call::bitwise_equal;
using call::HostTensor;
using mhla::Accumulator;
using mhla::Attention;
using mhla::AxialRotary;
using mhla::BFloat16;
using mhla::Bidirectional;
using mhla::BlockCausal;
using mhla::BlockRange;
using mhla::Blocks1D;
using mhla::Blocks2D;
using mhla::Blocks3D;
using mhla::Causal;
using mhla::columns_of;
using mhla::Grid;
using mhla::HalfSplitRotary;
using mhla::Index;
using mhla::MixedKeySum;
using mhla::NoRotation;
using mhla::Relu;
using mhla::rows_of;
using mhla::Shape;
using mhla::Softmax;
using mhla::Stage;
using mhla::TensorView;
using mhla::Unnormalized;
using mhla::Update;

// Blocks [0, blocks) cut at random places; some parts are empty.
std::vector<BlockRange> random_parts(Index blocks, Index parts, std::uint64_t seed) {
  std::vector<Index> cuts{0, blocks};
  for (Index i = 1; i < parts; ++i)
    cuts.push_back(mhla::testing::random_index(seed, static_cast<std::uint64_t>(i), blocks + 1));
  std::sort(cuts.begin(), cuts.end());
  std::vector<BlockRange> ranges;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    ranges.push_back({cuts[i], cuts[i + 1] - cuts[i]});
  return ranges;
}

// The tokens of some blocks, in the order of the sequence.
std::vector<Index> tokens_of(const Grid& grid, const BlockRange& blocks) {
  std::vector<Index> tokens;
  for (Index t = 0; t < grid.num_tokens(); ++t)
    if (grid.block_of(t) >= blocks.first && grid.block_of(t) < blocks.end()) tokens.push_back(t);
  return tokens;
}
template <class T>
HostTensor<T, 4> taken(const HostTensor<T, 4>& from, const std::vector<Index>& tokens) {
  const TensorView<const T, 4> all = from.view();
  HostTensor<T, 4> part(all.extent[0], all.extent[1], static_cast<Index>(tokens.size()),
                        all.extent[3]);
  for (Index n = 0; n < all.extent[0]; ++n)
    for (Index h = 0; h < all.extent[1]; ++h)
      for (std::size_t t = 0; t < tokens.size(); ++t)
        for (Index c = 0; c < all.extent[3]; ++c)
          part.view()(n, h, static_cast<Index>(t), c) = all(n, h, tokens[t], c);
  return part;
}
template <class T>
void put_back(const HostTensor<T, 4>& part, const std::vector<Index>& tokens,
              HostTensor<T, 4>& all) {
  const TensorView<const T, 4> from = part.view();
  for (Index n = 0; n < from.extent[0]; ++n)
    for (Index h = 0; h < from.extent[1]; ++h)
      for (std::size_t t = 0; t < tokens.size(); ++t)
        for (Index c = 0; c < from.extent[3]; ++c)
          all.view()(n, h, tokens[t], c) = from(n, h, static_cast<Index>(t), c);
}

// Rows that hold NaN: nothing may be read before it is written.
template <class A>
HostTensor<A, 2> unwritten(Index rows, Index columns) {
  HostTensor<A, 2> matrix(rows, columns);
  for (Index i = 0; i < rows * columns; ++i)
    matrix.view().element(i) = std::numeric_limits<A>::quiet_NaN();
  return matrix;
}

template <class T, class V>
struct Whole {
  using A = Accumulator<T>;
  V attention;
  call::Operands<T> x;
  Stages<V, T> stages;
  std::uint64_t seed;
  Grid query_grid;
  Grid key_grid;

  Whole(const V& variant, const Shape& shape, std::uint64_t of)
      : attention(variant),
        x(call::operands<T>(variant, shape, of)),
        stages(variant, x.shape()),
        seed(of) {
    const mhla::Problem problem = mhla::checked_problem(variant, x.shape());
    query_grid = problem.query_grid;
    key_grid = problem.key_grid;
  }

  auto executor() const { return backend::shuffled_device(seed); }
  mhla::Workspace workspace(Stage stage, const BlockRange& blocks,
                            const BlockRange& keys = {}) const {
    return call::poisoned_workspace(stages.workspace_size(stage, executor(), blocks, keys));
  }
  // Under Causal and BlockCausal, no more than queries see.
  TensorView<const A, 2> seen(const HostTensor<A, 2>& summaries, const BlockRange& queries) const {
    const TensorView<const A, 2> all = summaries.view();
    if (!mhla::sees_past_only<V>) return all;
    return rows_of(all, {0, std::max(Index{0}, queries.end() - lag_of(mhla::sight_of<V>))});
  }

  void check(const std::vector<BlockRange>& queries, const std::vector<BlockRange>& keys,
             Update update) {
    constexpr bool own = mhla::masks_own_block<V>;
    HostTensor<T, 4> y = x.dy;
    call::Gradients<T> gradients(x);
    const BlockRange all_queries = stages.query_blocks();
    const BlockRange all_keys = stages.key_blocks();
    const TensorView<const A, 3> mix = x.mix.view();

    auto summaries = unwritten<A>(all_keys.count, stages.summary_size());
    for (const BlockRange& range : keys) {
      const auto tokens = tokens_of(key_grid, range);
      REQUIRE(stages.key_tokens(range) == static_cast<Index>(tokens.size()));
      stages.summarize(executor(), range, taken(x.k, tokens).view(), taken(x.v, tokens).view(),
                       rows_of(summaries.view(), range), workspace(Stage::summarize, range));
    }

    auto mixtures = unwritten<A>(all_queries.count, stages.mixture_size());
    auto denominators = unwritten<A>(all_queries.count, stages.denominator_size());
    for (const BlockRange& range : queries) {
      const auto tokens = tokens_of(query_grid, range);
      REQUIRE(stages.query_tokens(range) == static_cast<Index>(tokens.size()));
      const auto q = taken(x.q, tokens);
      const auto dy = taken(x.dy, tokens);
      const auto k = own ? taken(x.k, tokens) : HostTensor<T, 4>();
      const auto v = own ? taken(x.v, tokens) : HostTensor<T, 4>();
      const mhla::OperandViews<T> part{q.view(), k.view(), v.view(), rows_of(mix, range)};
      auto some_y = dy;
      stages.read_out(executor(), range, part, seen(summaries, range), some_y.view(),
                      workspace(Stage::read_out, range));
      put_back(some_y, tokens, y);

      auto dq = taken(gradients.query, tokens);
      stages.read_out_gradient(
          executor(), range, part, seen(summaries, range), dy.view(),
          {dq.view(), mhla::skip, mhla::skip, rows_of(gradients.mix.view(), range)}, update,
          {rows_of(mixtures.view(), range), rows_of(denominators.view(), range)},
          workspace(Stage::read_out_gradient, range));
      put_back(dq, tokens, gradients.query);
    }

    auto summary_gradients = unwritten<A>(all_keys.count, stages.summary_size());
    for (const BlockRange& range : keys) {
      // Under Causal and BlockCausal, no earlier queries than see the keys.
      const Index first = mhla::sees_past_only<V> ? range.first : 0;
      const BlockRange later{first, all_queries.count - first};
      const TensorView<const A, 2> left = mixtures.view();
      stages.mix_gradient(executor(), later, range, columns_of(rows_of(mix, later), range),
                          rows_of(left, later), rows_of(summary_gradients.view(), range),
                          workspace(Stage::mix_gradient, later, range));

      const auto tokens = tokens_of(key_grid, range);
      const auto k = taken(x.k, tokens);
      const auto v = taken(x.v, tokens);
      const auto q = own ? taken(x.q, tokens) : HostTensor<T, 4>();
      const auto dy = own ? taken(x.dy, tokens) : HostTensor<T, 4>();
      auto dk = taken(gradients.key, tokens);
      auto dv = taken(gradients.value, tokens);
      mhla::OperandViews<T> part{q.view(), k.view(), v.view(), {}};
      mhla::GradientView<A, 3> dmix = mhla::skip;
      TensorView<const A, 2> den;
      if (own) {
        part.mix = rows_of(mix, range);
        dmix = rows_of(gradients.mix.view(), range);
        den = rows_of(TensorView<const A, 2>(denominators.view()), range);
      }
      stages.summarize_gradient(executor(), range, part,
                                rows_of(TensorView<const A, 2>(summary_gradients.view()), range),
                                dy.view(), den, {mhla::skip, dk.view(), dv.view(), dmix}, update,
                                workspace(Stage::summarize_gradient, range));
      put_back(dk, tokens, gradients.key);
      put_back(dv, tokens, gradients.value);
    }

    auto whole_y = call::forward(attention, x);
    CHECK(bitwise_equal(y.view(), whole_y.view()));
    call::Gradients<T> whole(x);
    call::backward_to(whole.views(), update, attention, x);
    call::check_same_bits(gradients, whole);
  }
};

template <class T, class V>
void check(const V& attention, const Shape& shape) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    Whole<T, V> whole(attention, shape, seed);
    const Index query_blocks = whole.stages.query_blocks().count;
    const Index key_blocks = whole.stages.key_blocks().count;
    INFO("split " << seed);
    whole.check(random_parts(query_blocks, static_cast<Index>(2 * seed), 10 * seed),
                random_parts(key_blocks, static_cast<Index>(2 * seed - 1), 10 * seed + 1),
                seed == 2 ? Update::accumulate : Update::overwrite);
  }
}

template <class Causality, class Normalizer>
void check_sequences() {
  using Sequence = Attention<Relu, Blocks1D, Causality, Normalizer, HalfSplitRotary>;
  SECTION("few blocks of odd sizes") {
    check<float>(Sequence{.blocks = {.block = 5}}, {2, 2, 2, 58, 58, 6, 7});
  }
  SECTION("blocks of several tiles, groups of query heads, ragged") {
    check<float>(Sequence{.blocks = {.block = 130}}, {1, 4, 2, 700, 700, 16, 8});
  }
  SECTION("a matrix per head") {
    check<float>(Sequence{.blocks = {.block = 3}}, {2, 4, 2, 100, 100, 16, 5, 4});
  }
  SECTION("a matrix for every head of every item, in double") {
    check<double>(Sequence{.blocks = {.block = 3}}, {2, 4, 2, 100, 100, 16, 5, 8});
  }
  SECTION("many blocks") {
    check<float>(Sequence{.blocks = {.block = 2}}, {1, 1, 1, 599, 599, 16, 16});
  }
  SECTION("rows of summaries that are summed lane by lane") {
    check<float>(Sequence{.blocks = {.block = 4}}, {1, 2, 1, 331, 331, 32, 36});
  }
  SECTION("rows that end in half a vector") {
    check<float>(Sequence{.blocks = {.block = 2}}, {1, 2, 1, 255, 255, 8, 5});
  }
  SECTION("features that are no whole vectors, many blocks") {
    check<float>(Sequence{.blocks = {.block = 2}}, {1, 2, 1, 599, 599, 6, 5, 2});
  }
  // With Bidirectional, and many blocks, kernels sum half vectors of rows in pairs.
  if constexpr (Causality::sight != mhla::Sight::all) {
    SECTION("rows that end in half a vector, many blocks") {
      check<float>(Sequence{.blocks = {.block = 2}}, {1, 2, 1, 599, 599, 8, 5, 2});
    }
  }
  SECTION("bfloat16") {
    check<BFloat16>(Sequence{.blocks = {.block = 7}}, {2, 2, 1, 165, 165, 16, 12});
  }
}

}  // namespace

TEST_CASE("stages of a sequence are the whole pass") {
  SECTION("normalized") { check_sequences<Bidirectional, MixedKeySum>(); }
  SECTION("unnormalized") { check_sequences<Bidirectional, Unnormalized>(); }
}

TEST_CASE("stages of a causal sequence are the whole pass") {
  SECTION("normalized") { check_sequences<Causal, MixedKeySum>(); }
  SECTION("unnormalized") { check_sequences<Causal, Unnormalized>(); }
}

TEST_CASE("stages of a block-causal sequence are the whole pass") {
  SECTION("normalized") { check_sequences<BlockCausal, MixedKeySum>(); }
  SECTION("unnormalized") { check_sequences<BlockCausal, Unnormalized>(); }
}

TEST_CASE("stages of images and videos are the whole pass") {
  using Image = Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, AxialRotary>;
  using Video = Attention<Softmax, Blocks3D, Bidirectional, MixedKeySum, AxialRotary>;
  using Crossed = Attention<Relu, Blocks3D>;
  SECTION("a ragged image") {
    check<float>(Image{.blocks = {.grid = {11, 13}, .block = {3, 4}}}, {2, 4, 2, 143, 143, 16, 9});
  }
  SECTION("a ragged video") {
    check<float>(Video{.blocks = {.grid = {5, 7, 11}, .block = {2, 3, 4}}},
                 {1, 2, 2, 385, 385, 16, 8, 2});
  }
  SECTION("other tokens and blocks on the key side") {
    check<float>(Crossed{.blocks = {.grid = {4, 6, 5}, .block = {2, 2, 2}},
                         .key_blocks = {.grid = {3, 3, 10}, .block = {1, 2, 3}}},
                 {1, 4, 2, 120, 90, 16, 8});
  }
}

// What a part of a grid is, counted one by one.
TEST_CASE("a grid counts the tokens of some of its blocks") {
  for (const Grid& grid :
       {Grid{{1, 1, 11}, {1, 1, 4}}, Grid{{1, 5, 7}, {1, 2, 3}}, Grid{{5, 4, 7}, {2, 3, 3}},
        Grid{{3, 3, 2}, {1, 3, 4}}, Grid{{0, 3, 2}, {1, 3, 4}}}) {
    for (Index blocks = 0; blocks <= grid.num_blocks(); ++blocks) {
      Index before = 0;
      for (Index t = 0; t < grid.num_tokens(); ++t) {
        CHECK(grid.tokens_before(blocks, t) == before);
        if (grid.block_of(t) < blocks) ++before;
      }
      CHECK(grid.num_tokens({0, blocks}) == before);
    }
  }
}

// Keys whose queries are shared out: the sum of what each call makes.
TEST_CASE("gradients of summaries add up") {
  const auto check_sum = [](const auto& attention) {
    using V = std::remove_cvref_t<decltype(attention)>;
    const Whole<float, V> whole(attention, {1, 2, 1, 90, 90, 16, 8}, 4);
    const Stages<V, float>& stages = whole.stages;
    const BlockRange all = stages.query_blocks();
    const auto mixtures = mhla::testing::random_tensor<float>(mhla::testing::Normal{}, 5, all.count,
                                                              stages.mixture_size());
    const TensorView<const float, 2> left = mixtures.view();
    const TensorView<const float, 3> mix = whole.x.mix.view();
    const auto made = [&](const BlockRange& queries, const BlockRange& keys) {
      auto sums = unwritten<float>(keys.count, stages.summary_size());
      stages.mix_gradient(whole.executor(), queries, keys, columns_of(rows_of(mix, queries), keys),
                          rows_of(left, queries), sums.view(),
                          whole.workspace(Stage::mix_gradient, queries, keys));
      return sums;
    };
    const auto expected = made(all, all);
    auto sum = unwritten<float>(all.count, stages.summary_size());
    for (Index i = 0; i < sum.view().size(); ++i) sum.view().element(i) = 0;
    for (const BlockRange& queries : random_parts(all.count, 4, 6))
      for (const BlockRange& keys : random_parts(all.count, 3, 7)) {
        const auto part = made(queries, keys);
        const auto to = rows_of(sum.view(), keys);
        for (Index i = 0; i < to.size(); ++i) to.element(i) += part.view().element(i);
      }
    bool close = true;  // which a NaN is not
    for (Index i = 0; i < sum.view().size(); ++i)
      close = close && std::abs(sum.view().element(i) - expected.view().element(i)) < 1e-5f;
    CHECK(close);
  };
  check_sum(Attention<Relu, Blocks1D>{.blocks = {.block = 4}});
  check_sum(Attention<Relu, Blocks1D, Causal>{.blocks = {.block = 4}});
  check_sum(Attention<Relu, Blocks1D, BlockCausal>{.blocks = {.block = 4}});
}

TEST_CASE("stages without tokens, heads or columns") {
  using V = Attention<Relu, Blocks1D>;
  const V attention{.blocks = {.block = 4}};
  check<float>(attention, {0, 2, 2, 9, 9, 4, 4});
  check<float>(attention, {2, 2, 2, 9, 9, 4, 0});
  check<float>(attention, {2, 2, 2, 9, 0, 4, 4});
  check<float>(attention, {2, 2, 2, 0, 9, 4, 4});
}
