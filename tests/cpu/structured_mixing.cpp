// SPDX-License-Identifier: MIT
// Calls with a structured mixing against the oracle, which forms the matrix it stands for.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cpu/executors.hpp"

namespace {

using call::check_against_oracle;
using call::operands;
using mhla::Attention;
using mhla::Bidirectional;
using mhla::BlockCausal;
using mhla::Blocks1D;
using mhla::Blocks2D;
using mhla::Blocks3D;
using mhla::Causal;
using mhla::EluPlusOne;
using mhla::HalfSplitRotary;
using mhla::Index;
using mhla::MixedKeySum;
using mhla::NoRotation;
using mhla::RecurrentMixing;
using mhla::SeparableMixing;
using mhla::Shape;
using mhla::Unnormalized;

using Recurrent =
    Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary, RecurrentMixing>;
using BlockRecurrent =
    Attention<EluPlusOne, Blocks1D, BlockCausal, Unnormalized, NoRotation, RecurrentMixing>;
template <class Geometry>
using Separable =
    Attention<EluPlusOne, Geometry, Bidirectional, MixedKeySum, NoRotation, SeparableMixing>;

// 41 blocks, of three tokens and of two: three chunks of the recurrence.
constexpr Index long_tokens = 122;

Shape recurrent_shape(Index heads, Index kv_heads, Index tokens, Index mix_heads, Index rows,
                      Index states) {
  return {2, heads, kv_heads, tokens, tokens, 6, 5, mix_heads, rows, 3 * states + 1};
}

}  // namespace

TEST_CASE("recurrent mixing: forward and gradients are the oracle's", "[cpu][mixing]") {
  for (const Index states : {1, 3})
    for (const Shape& shape : {recurrent_shape(2, 2, long_tokens, 1, 41, states),
                               recurrent_shape(4, 2, long_tokens, 4, 43, states),
                               recurrent_shape(2, 1, long_tokens, 4, 41, states),
                               recurrent_shape(2, 2, long_tokens, 2, 1, states),
                               recurrent_shape(1, 1, 5, 1, 1, states),
                               recurrent_shape(1, 1, 48, 1, 16, states),
                               recurrent_shape(1, 1, 51, 1, 17, states)}) {
      CAPTURE(states, shape.heads, shape.kv_heads, shape.query_tokens, shape.mix_heads,
              shape.mix_query_blocks);
      const Recurrent causal{.blocks = {.block = 3}, .mixing = {.states = states}};
      check_against_oracle(causal, operands<double>(causal, shape));
      const BlockRecurrent block_causal{.blocks = {.block = 3}, .mixing = {.states = states}};
      check_against_oracle(block_causal, operands<double>(block_causal, shape));
    }
}

TEST_CASE("separable mixing: forward and gradients are the oracle's", "[cpu][mixing]") {
  for (const Index rank : {1, 3})
    for (const Index mix_heads : {1, 2, 4}) {
      CAPTURE(rank, mix_heads);
      const Separable<Blocks1D> line{.blocks = {.block = 3}, .mixing = {.rank = rank}};
      check_against_oracle(
          line, operands<double>(line, {2, 2, 1, 17, 17, 4, 5, mix_heads, rank, 36}));
      const Separable<Blocks2D> image{.blocks = {.grid = {5, 7}, .block = {2, 2}},
                                      .mixing = {.rank = rank}};
      check_against_oracle(
          image, operands<double>(image, {2, 2, 2, 35, 35, 4, 5, mix_heads, rank, 9 + 16}));
      const Separable<Blocks2D> cross{.blocks = {.grid = {5, 7}, .block = {2, 2}},
                                      .key_blocks = {.grid = {4, 3}, .block = {1, 2}},
                                      .mixing = {.rank = rank}};
      check_against_oracle(
          cross, operands<double>(cross, {2, 2, 1, 35, 12, 4, 5, mix_heads, rank, 12 + 8}));
      const Separable<Blocks3D> video{.blocks = {.grid = {3, 4, 5}, .block = {1, 2, 2}},
                                      .key_blocks = {.grid = {2, 4, 1}, .block = {1, 1, 1}},
                                      .mixing = {.rank = rank}};
      check_against_oracle(
          video, operands<double>(video, {2, 2, 2, 60, 8, 4, 5, mix_heads, rank, 6 + 8 + 3}));
    }
}
