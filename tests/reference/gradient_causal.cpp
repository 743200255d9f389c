// SPDX-License-Identifier: MIT
// The oracle's causal backward passes against finite differences of their forward passes.
#include "tests/reference/oracle_call.hpp"

using namespace mhla;
using mhla::testing::AwayFromKink;

namespace {
constexpr Shape shape{.batch = 2,
                      .heads = 4,
                      .kv_heads = 2,
                      .query_tokens = 11,
                      .key_tokens = 11,
                      .key_dim = 6,
                      .value_dim = 5,
                      .mix_heads = 4,
                      .mix_query_blocks = 3,
                      .mix_key_blocks = 3};

Shape with_larger_mix() {
  Shape larger = shape;
  larger.mix_heads = 1;
  larger.mix_query_blocks = 5;
  larger.mix_key_blocks = 4;
  return larger;
}
}  // namespace

TEST_CASE("oracle gradient: causal, elu + 1, half-split, ragged, groups of heads", "[reference]") {
  const Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary> attention{
      .blocks = {.block = 4}, .scale = 0.4};
  check_gradients(attention, shape, AwayFromKink{});
  check_gradients(attention, with_larger_mix(), AwayFromKink{});
}

TEST_CASE("oracle gradient: causal, hedgehog, with masks", "[reference]") {
  HostTensor<std::uint8_t, 2> mask(2, 11);
  for (Index n = 0; n < 2; ++n)
    for (Index t = 0; t < 11; ++t) mask(n, t) = (t + n) % 4 != 1;
  check_gradients(Attention<Hedgehog, Blocks1D, Causal>{.blocks = {.block = 4}}, shape,
                  AwayFromKink{}, {mask.view(), mask.view()});
}

TEST_CASE("oracle gradient: causal, relu, unnormalized", "[reference]") {
  check_gradients(Attention<Relu, Blocks1D, Causal, Unnormalized>{.blocks = {.block = 4}}, shape,
                  AwayFromKink{});
}

TEST_CASE("oracle gradient: block-causal, exp, axial", "[reference]") {
  check_gradients(
      Attention<Exp, Blocks1D, BlockCausal, Unnormalized, AxialRotary>{.blocks = {.block = 4}},
      shape, AwayFromKink{});
}

TEST_CASE("oracle gradient: block-causal, relu, normalized", "[reference]") {
  check_gradients(Attention<Relu, Blocks1D, BlockCausal>{.blocks = {.block = 4}}, with_larger_mix(),
                  AwayFromKink{});
}
