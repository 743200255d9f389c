// SPDX-License-Identifier: MIT
// The MHLA oracle's numbers: a case small enough for paper and pencil, and angles far from 0.
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "tests/reference/oracle_call.hpp"

using namespace mhla;

namespace {}  // namespace

TEST_CASE("oracle: four tokens in two blocks, by hand", "[reference]") {
  // One feature, q = k = 1, 2, 3, 4 in blocks {1, 2} and {3, 4}; v = 1, 0, 0, 1; mix = [1 2; 0 5].
  // S = 1 * 1 + 2 * 0 = 1 and 3 * 0 + 4 * 1 = 4; z = 3 and 7. S~ = 1 + 2 * 4 = 9 and 5 * 4 = 20.
  Operands<double> operands({.batch = 1,
                             .heads = 1,
                             .kv_heads = 1,
                             .query_tokens = 4,
                             .key_tokens = 4,
                             .key_dim = 1,
                             .value_dim = 1,
                             .mix_heads = 1,
                             .mix_query_blocks = 2,
                             .mix_key_blocks = 2},
                            1, mhla::testing::Normal{});
  operands.q.elements() = operands.k.elements() = {1, 2, 3, 4};
  operands.v.elements() = {1, 0, 0, 1};
  operands.mix.elements() = {1, 2, 0, 5};
  using Elements = std::vector<double>;
  const Blocks1D blocks{.block = 2};
  SECTION("unnormalized: q S~, and the scale multiplies it") {
    const Attention<Identity, Blocks1D, Bidirectional, Unnormalized> attention{.blocks = blocks};
    CHECK(forward(attention, operands).elements() == Elements{9, 18, 60, 80});
    auto scaled = attention;
    scaled.scale = 0.5;
    CHECK(forward(scaled, operands).elements() == Elements{4.5, 9, 30, 40});
  }
  SECTION("mixed key sum: z~ = 3 + 2 * 7 = 17 and 35") {
    const Attention<Identity, Blocks1D> attention{.blocks = blocks, .normalizer = {.epsilon = 1}};
    CHECK(forward(attention, operands).elements() ==
          Elements{9 / 18.0, 18 / 35.0, 60 / 106.0, 80 / 141.0});
    auto scaled = attention;  // the scale reaches the denominator, epsilon stays
    scaled.scale = 2;
    CHECK(forward(scaled, operands).elements() ==
          Elements{18 / 35.0, 36 / 69.0, 120 / 211.0, 160 / 281.0});
  }
  SECTION("mixed product: r = (1, 2) * 3 and (3, 4) * 7, mixed by offset") {
    const Attention<Identity, Blocks1D, Bidirectional, MixedProduct> attention{
        .blocks = blocks, .normalizer = {.epsilon = 1}};
    // den = 3 + 2 * 21 + 1, 6 + 2 * 28 + 1, 5 * 21 + 1, 5 * 28 + 1
    CHECK(forward(attention, operands).elements() ==
          Elements{9 / 46.0, 18 / 63.0, 60 / 106.0, 80 / 141.0});
  }
  SECTION("causal: the entry above the diagonal is ignored") {
    operands.mix.elements() = {1, 1000, 3, 5};
    // token by token: 1; 2 * 1; 3 * 3 * 1; 4 (3 * 1 + 5 * 4)
    const Attention<Identity, Blocks1D, Causal, Unnormalized> attention{.blocks = blocks};
    CHECK(forward(attention, operands).elements() == Elements{1, 2, 9, 92});
    // den: 1; 2 * 3; 3 (3 * 3 + 5 * 3); 4 (3 * 3 + 5 * 7), and 1 more
    const Attention<Identity, Blocks1D, Causal> normalized{.blocks = blocks,
                                                           .normalizer = {.epsilon = 1}};
    CHECK(forward(normalized, operands).elements() ==
          Elements{1 / 2.0, 2 / 7.0, 9 / 73.0, 92 / 177.0});
    const Attention<Identity, Blocks1D, BlockCausal, Unnormalized> by_block{.blocks = blocks};
    CHECK(forward(by_block, operands).elements() == Elements{1, 2, 69, 92});
  }
}

TEST_CASE("oracle: rotation angles are exact at position 31,499", "[reference]") {
  // One key at position 0, one query at the far end: y = (R_t q) . k v.
  const Index tokens = 31500;
  HostTensor<float, 4> q(1, 1, tokens, 4);
  HostTensor<float, 4> k(1, 1, 1, 4);
  HostTensor<float, 4> v(1, 1, 1, 1);
  HostTensor<float, 4> y(1, 1, tokens, 1);
  HostTensor<float, 3> mix(1, 1, 1);
  q(0, 0, tokens - 1, 1) = 1;  // pair (1, 3), frequency 10000^(-1/2)
  k(0, 0, 0, 3) = 1;
  v(0, 0, 0, 0) = 1;
  mix(0, 0, 0) = 1;
  const Attention<Identity, Blocks1D, Bidirectional, Unnormalized, HalfSplitRotary> attention{
      .blocks = {.block = tokens}, .key_blocks = {.block = 1}};
  reference::mhla_forward(attention, q.view(), k.view(), v.view(), mix.view(), y.view());
  CHECK(y(0, 0, tokens - 1, 0) == static_cast<float>(std::sin(314.99)));
}
