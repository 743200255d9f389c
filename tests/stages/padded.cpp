// SPDX-License-Identifier: MIT
// Stages of a padded batch, each with the masks of its own tokens, make what the whole pass makes,
// bit for bit.
#include "tests/stages/whole.hpp"

namespace {

using mhla::Attention;
using mhla::AxialRotary;
using mhla::BFloat16;
using mhla::Bidirectional;
using mhla::BlockCausal;
using mhla::Blocks1D;
using mhla::Blocks3D;
using mhla::Causal;
using mhla::HalfSplitRotary;
using mhla::MixedKeySum;
using mhla::Relu;
using mhla::Shape;
using mhla::Softmax;
using mhla::Unnormalized;
using staged::meets;

template <class T, class V>
void check(const V& attention, const Shape& shape) {
  staged::check<T, true>(attention, shape);
}

template <class Causality, class Normalizer>
void check_sequences() {
  using Sequence = Attention<Relu, Blocks1D, Causality, Normalizer, HalfSplitRotary>;
  SECTION("few blocks of odd sizes") {
    check<float>(Sequence{.blocks = {.block = 5}}, {3, 2, 2, 58, 58, 6, 7});
  }
  SECTION("blocks of several tiles, ragged, a matrix for each head of an item") {
    check<float>(Sequence{.blocks = {.block = 130}}, {2, 4, 2, 700, 700, 16, 8, 8});
  }
  SECTION("rows that end in half a vector") {
    check<float>(Sequence{.blocks = {.block = 2}}, {4, 2, 1, 255, 255, 8, 5});
  }
  SECTION("many blocks") {
    check<float>(Sequence{.blocks = {.block = 2}}, {3, 1, 1, 599, 599, 16, 16});
  }
  if constexpr (meets<double, Causality, Normalizer>) {
    SECTION("double") {
      check<double>(Sequence{.blocks = {.block = 3}}, {3, 4, 2, 99, 99, 6, 5, 4});
    }
  }
  if constexpr (meets<BFloat16, Causality, Normalizer>) {
    SECTION("bfloat16") {
      check<BFloat16>(Sequence{.blocks = {.block = 7}}, {3, 2, 1, 165, 165, 16, 12});
    }
  }
}

}  // namespace

TEST_CASE("stages of a padded batch are the whole pass") {
  SECTION("normalized") { check_sequences<Bidirectional, MixedKeySum>(); }
  SECTION("unnormalized") { check_sequences<Bidirectional, Unnormalized>(); }
}

TEST_CASE("stages of a padded causal batch are the whole pass") {
  SECTION("normalized") { check_sequences<Causal, MixedKeySum>(); }
  SECTION("unnormalized") { check_sequences<Causal, Unnormalized>(); }
}

TEST_CASE("stages of a padded block-causal batch are the whole pass") {
  SECTION("normalized") { check_sequences<BlockCausal, MixedKeySum>(); }
  SECTION("unnormalized") { check_sequences<BlockCausal, Unnormalized>(); }
}

TEST_CASE("stages of padded videos are the whole pass") {
  using Video = Attention<Softmax, Blocks3D, Bidirectional, MixedKeySum, AxialRotary>;
  check<float>(Video{.blocks = {.grid = {5, 7, 11}, .block = {2, 3, 4}}},
               {2, 2, 2, 385, 385, 16, 8, 2});
  check<float>(Video{.blocks = {.grid = {4, 6, 5}, .block = {2, 2, 2}},
                     .key_blocks = {.grid = {3, 3, 10}, .block = {1, 2, 3}}},
               {2, 4, 2, 120, 90, 16, 8});
}
