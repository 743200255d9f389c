// SPDX-License-Identifier: MIT
// Operation counts of published models' layers, in millions, worked out by hand from their shapes.
#include <mhla/diagnostics/cost.hpp>

#include "tests/support/catch.hpp"

using mhla::Shape;
using namespace mhla::diagnostics;

TEST_CASE("cost: a DeiT-T layer", "[diagnostics]") {
  const mhla::Attention<mhla::Relu, mhla::Blocks2D> attention{
      .blocks = {.grid = {16, 16}, .block = {4, 4}}};
  const Shape shape{1, 3, 3, 256, 256, 64, 64, 1, 16, 16};
  const ForwardCost cost = forward_cost(attention, shape);
  CHECK(cost.summaries == 6'291'456);  // 2 * 256 * 64 * 64, 3 heads
  CHECK(cost.readout == 6'291'456);
  CHECK(cost.mixing == 6'291'456);  // 2 * 16 * 16 * 64 * 64, 3 heads
  CHECK(cost.intra_block == 0);
  CHECK(cost.flops() == 18'874'368);
  CHECK(cost.state == 196'608);                            // 0.79 MB of float
  CHECK(softmax_attention_flops(shape) == 50'331'648);     // 2 * 256 * 256 * 128, 3 heads
  CHECK(linear_attention_flops(shape, 64) == 12'582'912);  // MHLA without mixing
}

TEST_CASE("cost: a causal language model's layer", "[diagnostics]") {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized> attention{
      .blocks = {.block = 64}};
  const Shape shape{1, 4, 4, 2048, 2048, 128, 256, 1, 32, 32};
  const ForwardCost cost = forward_cost(attention, shape);
  CHECK(cost.summaries + cost.readout == 1'073'741'824);
  CHECK(cost.intra_block == 402'653'184);  // 2 * 64 * 64 * (128 + 256), 32 blocks, 4 heads
  CHECK(cost.mixing == 130'023'424);       // 2 * 496 pairs * 128 * 256, 4 heads
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::BlockCausal> block_causal{
      .blocks = {.block = 64}};
  CHECK(forward_cost(block_causal, shape).mixing == 138'412'032);  // 528 pairs
  CHECK(forward_cost(block_causal, shape).intra_block == 0);
}

TEST_CASE("cost: grouped heads, cross-attention, a shorter block, more features than inputs",
          "[diagnostics]") {
  const mhla::Attention<mhla::Hedgehog, mhla::Blocks1D> attention{.blocks = {.block = 4},
                                                                  .key_blocks = {.block = 3}};
  const Shape shape{2, 6, 3, 10, 7, 5, 11, 1, 3, 3};
  const ForwardCost cost = forward_cost(attention, shape);
  CHECK(cost.summaries == 2 * 2 * 3 * 7 * 10 * 11);
  CHECK(cost.mixing == 2 * 2 * 6 * 3 * 3 * 10 * 11);
  CHECK(cost.readout == 2 * 2 * 6 * 10 * 10 * 11);
  CHECK(cost.state == 2 * 3 * 3 * 10 * 11);
  CHECK(softmax_attention_flops(shape) == 2 * 2 * 6 * 10 * 7 * (5 + 11));
  CHECK(linear_attention_flops(shape, 10) == 2 * 2 * (3 * 7 + 6 * 10) * 10 * 11);

  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal> causal{.blocks = {.block = 4}};
  const Shape ragged{1, 1, 1, 10, 10, 5, 11, 1, 3, 3};
  CHECK(forward_cost(causal, ragged).intra_block == 2 * (16 + 16 + 4) * (5 + 11));
}

TEST_CASE("cost: a structured mixing is the cost of its products", "[diagnostics]") {
  using namespace mhla;
  const Attention<Relu, Blocks1D, Causal, MixedKeySum, NoRotation, RecurrentMixing> recurrent{
      .blocks = {.block = 4}, .mixing = {.states = 3}};
  // Two chunks: triangles of 16 and of 9 blocks below the diagonal, states read by 9 blocks, and
  // written at the end of the first chunk.
  const Index pairs = 16 * 15 / 2 + 9 * 8 / 2 + 9 * 3 + 3 * 16;
  CHECK(forward_cost(recurrent, Shape{2, 4, 2, 99, 99, 5, 11, 1, 25, 10}).mixing ==
        2 * 2 * 4 * pairs * 5 * 11);
  const Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, NoRotation, SeparableMixing>
      separable{.blocks = {.grid = {6, 8}, .block = {2, 2}}, .mixing = {.rank = 2}};
  CHECK(forward_cost(separable, Shape{1, 1, 1, 48, 48, 5, 11, 1, 2, 9 + 16}).mixing ==
        2 * 2 * 12 * (3 + 4) * 5 * 11);
}
