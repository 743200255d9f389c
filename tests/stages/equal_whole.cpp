// SPDX-License-Identifier: MIT
// Stages on any split of a sequence's blocks make what the whole pass makes, bit for bit.
#include <cmath>
#include <type_traits>

#include "tests/stages/whole.hpp"

namespace {

using backend::long_tokens;
using backend::many_tokens;
using namespace mhla;
using namespace staged;

constexpr auto check_sequences = []<class Sequence>() {
  SECTION("few blocks of odd sizes") {
    check<float>(Sequence{.blocks = {.block = 5}}, {2, 2, 2, 58, 58, 6, 7});
  }
  SECTION("blocks of several tiles, groups of query heads, ragged") {
    check<float>(Sequence{.blocks = {.block = 130}}, {1, 4, 2, long_tokens, long_tokens, 16, 8});
  }
  SECTION("a matrix per head") {
    check<float>(Sequence{.blocks = {.block = 3}}, {2, 4, 2, 100, 100, 16, 5, 4});
  }
  if constexpr (meets<double, Sequence>()) {
    SECTION("a matrix for every head of every item, in double") {
      check<double>(Sequence{.blocks = {.block = 3}}, {2, 4, 2, 100, 100, 16, 5, 8});
    }
  }
  SECTION("many blocks") {
    check<float>(Sequence{.blocks = {.block = 2}}, {1, 1, 1, many_tokens, many_tokens, 16, 16});
  }
  if constexpr (backend::runs_all_cases) {  // of the CPU's vectors
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
    if constexpr (mhla::sight_of<Sequence> != mhla::Sight::all) {
      SECTION("rows that end in half a vector, many blocks") {
        check<float>(Sequence{.blocks = {.block = 2}}, {1, 2, 1, 599, 599, 8, 5, 2});
      }
    }
  }
  if constexpr (meets<BFloat16, Sequence>()) {
    SECTION("bfloat16") {
      check<BFloat16>(Sequence{.blocks = {.block = 7}}, {2, 2, 1, 165, 165, 16, 12});
    }
  }
};

}  // namespace

TEST_CASE("stages of a sequence are the whole pass") {
  for_each_normalizer<Bidirectional>(check_sequences);
}

TEST_CASE("stages of a causal sequence are the whole pass") {
  for_each_normalizer<Causal>(check_sequences);
}

TEST_CASE("stages of a block-causal sequence are the whole pass") {
  for_each_normalizer<BlockCausal>(check_sequences);
}

TEST_CASE("stages of images and videos are the whole pass") {
  using Image = Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, AxialRotary>;
  using Video = Attention<Softmax, Blocks3D, Bidirectional, MixedKeySum, AxialRotary>;
  using Crossed = Attention<Relu, Blocks3D>;
  SECTION("a ragged video") {
    check<float>(Video{.blocks = {.grid = {5, 7, 11}, .block = {2, 3, 4}}},
                 {1, 2, 2, 385, 385, 16, 8, 2});
  }
  // A grid is of three axes, and ranks run these, too.
  if constexpr (backend::runs_all_cases) {
    SECTION("a ragged image") {
      check<float>(Image{.blocks = {.grid = {11, 13}, .block = {3, 4}}},
                   {2, 4, 2, 143, 143, 16, 9});
    }
    SECTION("other tokens and blocks on the key side") {
      check<float>(Crossed{.blocks = {.grid = {4, 6, 5}, .block = {2, 2, 2}},
                           .key_blocks = {.grid = {3, 3, 10}, .block = {1, 2, 3}}},
                   {1, 4, 2, 120, 90, 16, 8});
    }
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
    Whole<float, V> whole(attention, {1, 2, 1, 90, 90, 16, 8}, 4);
    const auto& stages = whole.stages;
    const BlockRange all = stages.query_blocks();
    const auto mixtures = mhla::testing::random_tensor<float>(mhla::testing::Normal{}, 5, all.count,
                                                              stages.mixture_size());
    const TensorView<const float, 2> left = mixtures.view();
    const TensorView<const float, 3> mix = whole.x.mix.view();
    const auto made = [&](const BlockRange& queries, const BlockRange& keys) {
      auto sums = unwritten<float>(keys.count, stages.summary_size());
      stages.mix_gradient(whole.executor(), queries, keys, columns_of(rows_of(mix, queries), keys),
                          rows_of(left, queries), sums.view(),
                          whole.workspace(whole.on({}, {}), Stage::mix_gradient, queries, keys));
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
  check_sum(SequenceOf<Bidirectional, MixedKeySum>{.blocks = {.block = 4}});
  check_sum(SequenceOf<Causal, MixedKeySum>{.blocks = {.block = 4}});
  check_sum(SequenceOf<BlockCausal, Unnormalized>{.blocks = {.block = 4}});
}

TEST_CASE("stages without tokens, heads or columns") {
  const SequenceOf<Bidirectional, MixedKeySum> attention{.blocks = {.block = 4}};
  check<float>(attention, {0, 2, 2, 9, 9, 4, 4});
  check<float>(attention, {2, 2, 2, 9, 9, 4, 0});
  check<float>(attention, {2, 2, 2, 9, 0, 4, 4});
  check<float>(attention, {2, 2, 2, 0, 9, 4, 4});
}
