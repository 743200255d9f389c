// SPDX-License-Identifier: MIT
// Stages of a padded batch, each with the masks of its own tokens, make what the whole pass makes,
// bit for bit.
#include "tests/stages/whole.hpp"

namespace {

using backend::long_tokens;
using backend::many_tokens;
using namespace mhla;
using staged::for_each_normalizer;
using staged::meets;

template <class T, class V>
void check(const V& attention, const Shape& shape) {
  staged::check<T, true>(attention, shape);
}

constexpr auto check_sequences = []<class Sequence>() {
  SECTION("few blocks of odd sizes") {
    check<float>(Sequence{.blocks = {.block = 5}}, {3, 2, 2, 58, 58, 6, 7});
  }
  SECTION("blocks of several tiles, ragged, a matrix for each head of an item") {
    check<float>(Sequence{.blocks = {.block = 130}}, {2, 4, 2, long_tokens, long_tokens, 16, 8, 8});
  }
  SECTION("rows that end in half a vector") {
    check<float>(Sequence{.blocks = {.block = 2}}, {4, 2, 1, 255, 255, 8, 5});
  }
  SECTION("many blocks") {
    check<float>(Sequence{.blocks = {.block = 2}}, {3, 1, 1, many_tokens, many_tokens, 16, 16});
  }
  if constexpr (meets<double, Sequence>()) {
    SECTION("double") {
      check<double>(Sequence{.blocks = {.block = 3}}, {3, 4, 2, 99, 99, 6, 5, 4});
    }
  }
  if constexpr (meets<BFloat16, Sequence>()) {
    SECTION("bfloat16") {
      check<BFloat16>(Sequence{.blocks = {.block = 7}}, {3, 2, 1, 165, 165, 16, 12});
    }
  }
};

}  // namespace

TEST_CASE("stages of a padded batch are the whole pass") {
  for_each_normalizer<Bidirectional>(check_sequences);
}

TEST_CASE("stages of a padded causal batch are the whole pass") {
  for_each_normalizer<Causal>(check_sequences);
}

TEST_CASE("stages of a padded block-causal batch are the whole pass") {
  for_each_normalizer<BlockCausal>(check_sequences);
}

TEST_CASE("stages of padded videos are the whole pass") {
  using Video = Attention<Softmax, Blocks3D, Bidirectional, MixedKeySum, AxialRotary>;
  check<float>(Video{.blocks = {.grid = {5, 7, 11}, .block = {2, 3, 4}}},
               {2, 2, 2, 385, 385, 16, 8, 2});
  check<float>(Video{.blocks = {.grid = {4, 6, 5}, .block = {2, 2, 2}},
                     .key_blocks = {.grid = {3, 3, 10}, .block = {1, 2, 3}}},
               {2, 4, 2, 120, 90, 16, 8});
}
