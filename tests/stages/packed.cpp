// SPDX-License-Identifier: MIT
// Stages of packed sequences, on any split of the list of their blocks, make what the whole pass
// makes: bit for bit, but for dmix, which is summed in another order.
#include <algorithm>
#include <cstdint>
#include <mhla/packed.hpp>
#include <type_traits>
#include <vector>

#include "tests/stages/whole.hpp"

namespace {

using namespace mhla;
using namespace staged;

template <class Offset>
std::vector<Offset> offsets_of(const std::vector<Index>& lengths) {
  std::vector<Offset> offsets{0};
  for (const Index length : lengths)
    offsets.push_back(static_cast<Offset>(offsets.back() + length));
  return offsets;
}

// `shape` of any tokens; mix has no more blocks than the longest sequence unless `shape` says so.
template <class T, class Offset, class V>
void check(const V& attention, Shape shape, const std::vector<Index>& lengths) {
  const auto offsets = offsets_of<Offset>(lengths);
  shape.query_tokens = shape.key_tokens = static_cast<Index>(offsets.back());
  const Index longest = *std::max_element(lengths.begin(), lengths.end());
  if (shape.mix_query_blocks == 0)
    shape.mix_query_blocks = shape.mix_key_blocks = mhla::ceil_div(longest, attention.blocks.block);
  staged::check<T>(mhla::packed(attention, offsets), shape);
}

constexpr auto check_sequences = []<class Sequence>() {
  SECTION("empty, shorter than a block, longer; groups of query heads") {
    check<float, std::int32_t>(Sequence{.blocks = {.block = 5}}, {1, 4, 2, 0, 0, 6, 7},
                               {0, 3, 58, 0, 5, 11, 1, 0});
  }
  SECTION("a matrix per head, with more rows and columns than the longest sequence has blocks") {
    check<float, std::int32_t>(Sequence{.blocks = {.block = 3}}, {1, 4, 2, 0, 0, 16, 5, 4, 20, 22},
                               {7, 50, 2, 31});
  }
  SECTION("blocks of several tiles") {
    check<float, std::int32_t>(Sequence{.blocks = {.block = 130}}, {1, 2, 1, 0, 0, 16, 8},
                               {300, 100, 500});
  }
  if constexpr (meets<double, Sequence>()) {
    SECTION("many blocks, in double") {
      check<double, std::int64_t>(Sequence{.blocks = {.block = 2}}, {1, 2, 2, 0, 0, 16, 16},
                                  {backend::runs_all_cases ? 399 : 99, 1, 64, 0, 131});
    }
  }
  if constexpr (meets<BFloat16, Sequence>()) {
    SECTION("bfloat16") {
      check<BFloat16, std::int32_t>(Sequence{.blocks = {.block = 7}}, {1, 2, 1, 0, 0, 16, 12},
                                    {40, 7, 90, 3});
    }
  }
  SECTION("no tokens, sequences or values") {
    check<float, std::int32_t>(Sequence{.blocks = {.block = 4}}, {1, 2, 1, 0, 0, 4, 4}, {0, 0});
    check<float, std::int32_t>(Sequence{.blocks = {.block = 4}}, {1, 2, 1, 0, 0, 4, 0}, {9, 2});
  }
};

}  // namespace

TEST_CASE("stages of packed sequences are the whole pass") {
  for_each_normalizer<Bidirectional>(check_sequences);
}

TEST_CASE("stages of packed causal sequences are the whole pass") {
  for_each_normalizer<Causal>(check_sequences);
}

TEST_CASE("stages of packed block-causal sequences are the whole pass") {
  for_each_normalizer<BlockCausal>(check_sequences);
}

TEMPLATE_TEST_CASE("no blocks, inside of a packed sequence, leave nothing", "",
                   (SequenceOf<Bidirectional, MixedKeySum>), (SequenceOf<Causal, MixedKeySum>),
                   (SequenceOf<BlockCausal, Unnormalized>)) {
  const auto offsets = offsets_of<std::int32_t>({3, 20});
  const auto packed = mhla::packed(TestType{.blocks = {.block = 4}}, offsets);
  staged::Whole<float, std::remove_cv_t<decltype(packed)>> whole(
      packed, {1, 4, 2, 23, 23, 6, 5, 1, 5, 5}, 1);
  for (const mhla::Update update : {mhla::Update::overwrite, mhla::Update::accumulate})
    whole.check({{0, 4}, {4, 0}, {4, 2}}, {{0, 2}, {2, 0}, {2, 4}}, update);
}

TEST_CASE("dmix of packed sequences is the same for any executor") {
  const auto offsets = offsets_of<std::int32_t>({20, 3, 41});
  const auto packed =
      mhla::packed(SequenceOf<Causal, MixedKeySum>{.blocks = {.block = 4}}, offsets);
  staged::Whole<float, std::remove_cv_t<decltype(packed)>> whole(packed, {1, 4, 2, 64, 64, 6, 5},
                                                                 1);
  const auto run = [&](std::uint64_t order) {
    whole.seed = order;
    return whole.run({{0, 7}, {7, 10}}, {{0, 3}, {3, 14}}, mhla::Update::overwrite).gradients.mix;
  };
  auto first = run(1);
  auto second = run(2);
  CHECK(call::bitwise_equal(first.view(), second.view()));
}
