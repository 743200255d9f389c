// SPDX-License-Identifier: MIT
// The oracle's backward pass against finite differences of its forward pass: every feature map,
// geometry, normalizer and rotation at least once. Sizes are pairwise distinct where they can be.
#include "tests/reference/oracle_call.hpp"

using namespace mhla;
using mhla::testing::AwayFromKink;
using mhla::testing::Positive;

TEST_CASE("oracle gradient: relu, ragged sequence, groups of heads, a mix per head",
          "[reference]") {
  check_gradients(Attention<Relu, Blocks1D>{.blocks = {.block = 5}, .scale = 0.7},
                  {.batch = 2,
                   .heads = 6,
                   .kv_heads = 3,
                   .query_tokens = 13,
                   .key_tokens = 13,
                   .key_dim = 4,
                   .value_dim = 7,
                   .mix_heads = 6,
                   .mix_query_blocks = 3,
                   .mix_key_blocks = 3},
                  AwayFromKink{});
}

TEST_CASE("oracle gradient: squared relu, rectangular mix between two images, axial",
          "[reference]") {
  check_gradients(
      Attention<SquaredRelu, Blocks2D, Bidirectional, MixedKeySum, AxialRotary>{
          .blocks = {.grid = {5, 3}, .block = {2, 2}},
          .key_blocks = {.grid = {2, 7}, .block = {2, 3}}},
      {.batch = 2,
       .heads = 2,
       .kv_heads = 1,
       .query_tokens = 15,
       .key_tokens = 14,
       .key_dim = 6,
       .value_dim = 5,
       .mix_heads = 1,
       .mix_query_blocks = 6,
       .mix_key_blocks = 3},
      AwayFromKink{});
}

TEST_CASE("oracle gradient: elu + 1, video, MixedProduct, axial", "[reference]") {
  check_gradients(
      Attention<EluPlusOne, Blocks3D, Bidirectional, MixedProduct, AxialRotary>{
          .blocks = {.grid = {2, 4, 3}, .block = {1, 2, 3}}},
      {.batch = 2,
       .heads = 2,
       .kv_heads = 1,
       .query_tokens = 24,
       .key_tokens = 24,
       .key_dim = 6,
       .value_dim = 5,
       .mix_heads = 2,
       .mix_query_blocks = 4,
       .mix_key_blocks = 4},
      AwayFromKink{});
}

TEST_CASE("oracle gradient: exp, ragged video, unnormalized, mix larger than needed is refused",
          "[reference]") {
  const Attention<Exp, Blocks3D, Bidirectional, Unnormalized> attention{
      .blocks = {.grid = {3, 2, 5}, .block = {2, 2, 3}}};
  Shape shape{.batch = 1,
              .heads = 2,
              .kv_heads = 2,
              .query_tokens = 30,
              .key_tokens = 30,
              .key_dim = 3,
              .value_dim = 4,
              .mix_heads = 1,
              .mix_query_blocks = 4,
              .mix_key_blocks = 4};
  check_gradients(attention, shape, AwayFromKink{});
  shape.mix_query_blocks = 5;
  CHECK_THROWS_AS(forward(attention, Operands<double>(shape, 1, Positive{})), ShapeError);
}

TEST_CASE("oracle gradient: dpfp, unnormalized, a mix larger than the layout", "[reference]") {
  check_gradients(
      Attention<Dpfp, Blocks1D, Bidirectional, Unnormalized, AxialRotary>{
          .feature_map = {.nu = 2}, .blocks = {.block = 4}, .mixing = {.leading_corner = true}},
      {.batch = 1,
       .heads = 2,
       .kv_heads = 1,
       .query_tokens = 10,
       .key_tokens = 10,
       .key_dim = 3,
       .value_dim = 5,
       .mix_heads = 2,
       .mix_query_blocks = 5,
       .mix_key_blocks = 6},
      AwayFromKink{});
}

TEST_CASE("oracle gradient: favor, MixedProduct on a sequence", "[reference]") {
  const auto projection = mhla::testing::random_tensor<double>(mhla::testing::Normal{}, 5, 7, 4);
  check_gradients(
      Attention<Favor<double>, Blocks1D, Bidirectional, MixedProduct>{
          .feature_map = {projection.view()}, .blocks = {.block = 3}},
      {.batch = 2,
       .heads = 2,
       .kv_heads = 2,
       .query_tokens = 12,
       .key_tokens = 12,
       .key_dim = 4,
       .value_dim = 5,
       .mix_heads = 1,
       .mix_query_blocks = 4,
       .mix_key_blocks = 4},
      AwayFromKink{});
}

TEST_CASE("oracle gradient: masked queries and keys", "[reference]") {
  HostTensor<std::uint8_t, 2> query_mask(2, 11);
  HostTensor<std::uint8_t, 2> key_mask(2, 8);
  for (Index n = 0; n < 2; ++n) {
    for (Index t = 0; t < 11; ++t) query_mask(n, t) = (t + n) % 4 != 0;
    for (Index j = 0; j < 8; ++j) key_mask(n, j) = (j + n) % 3 != 1;
  }
  check_gradients(
      Attention<EluPlusOne, Blocks1D, Bidirectional, MixedKeySum, HalfSplitRotary>{
          .blocks = {.block = 5}, .key_blocks = {.block = 3}},
      {.batch = 2,
       .heads = 4,
       .kv_heads = 2,
       .query_tokens = 11,
       .key_tokens = 8,
       .key_dim = 4,
       .value_dim = 5,
       .mix_heads = 1,
       .mix_query_blocks = 3,
       .mix_key_blocks = 3},
      AwayFromKink{}, {query_mask.view(), key_mask.view()});
}
