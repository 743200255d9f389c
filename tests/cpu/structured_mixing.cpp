// SPDX-License-Identifier: MIT
// Calls with a structured mixing against the oracle, which forms the matrix it stands for.
#include <cmath>
#include <cstdint>
#include <limits>
#include <mhla/packed.hpp>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/packed/cut.hpp"
#include "tests/packed/requests.hpp"

namespace {

using namespace call;
using namespace mhla;

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
                               recurrent_shape(1, 1, 48, 1, 16, states)}) {
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
      check_against_oracle(line,
                           operands<double>(line, {2, 2, 1, 17, 17, 4, 5, mix_heads, rank, 36}));
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

TEST_CASE("structured mixing: the same bits on any executor, saved, and for any request",
          "[cpu][mixing]") {
  const Recurrent causal{.blocks = {.block = 3}, .mixing = {.states = 2}};
  batches::check_requests(causal, operands<double>(causal, {2, 4, 2, 60, 60, 6, 5, 4}));
  const BlockRecurrent block_causal{.blocks = {.block = 3}, .mixing = {.states = 2}};
  batches::check_requests(block_causal, operands<double>(block_causal, {1, 2, 2, 60, 60, 6, 5, 2}));
  const Separable<Blocks2D> image{.blocks = {.grid = {6, 8}, .block = {2, 2}},
                                  .mixing = {.rank = 2}};
  batches::check_requests(image, operands<double>(image, {2, 2, 1, 48, 48, 4, 5, 4}));
  // Slots without a head of their own take half of the value columns.
  batches::check_requests(image, operands<double>(image, {1, 1, 1, 48, 48, 16, 64}));
  batches::check_requests(causal, operands<double>(causal, {1, 1, 1, 60, 60, 16, 64}));
}

TEST_CASE("structured mixing: a padded batch is the oracle's with its masks", "[cpu][mixing]") {
  const auto check = [](const auto& attention, const Shape& shape) {
    const auto x = operands<double>(attention, shape);
    HostTensor<std::uint8_t, 2> mask(shape.batch, shape.query_tokens);
    for (Index n = 0; n < shape.batch; ++n)
      for (Index t = 0; t < shape.query_tokens; ++t)  // holes, an empty block, an end of padding
        mask(n, t) = t % 7 != 2 && (t < 9 || t >= 12) && t < shape.query_tokens - 17 * n;
    const auto padded = mhla::padded(attention, mask.view());
    const auto wide = call::converted<long double>(x);
    HostTensor<long double, 4> y = wide.dy;
    call::Gradients<long double> gradients(wide);
    const mhla::TokenMasks masks{mask.view(), mask.view()};
    mhla::reference::mhla_forward(attention, wide.q, wide.k, wide.v, wide.mix, y.view(), masks);
    mhla::reference::mhla_backward(attention, wide.q.view(), wide.k, wide.v, wide.mix, wide.dy,
                                   gradients.views(), mhla::Update::overwrite, masks);
    call::check_close("y", forward(padded, x), y, tolerance::forward_rms<double>,
                      tolerance::forward_max<double>);
    call::check_close(backward(padded, x), gradients);
    batches::check_requests(padded, x);
  };
  check(BlockRecurrent{.blocks = {.block = 3}, .mixing = {.states = 2}},
        {2, 2, 1, 60, 60, 4, 3, 2});
  check(Separable<Blocks2D>{.blocks = {.grid = {6, 8}, .block = {2, 2}}, .mixing = {.rank = 2}},
        {2, 2, 1, 48, 48, 4, 3, 2});
}

TEST_CASE("recurrent mixing: no token sees a later one, whatever it holds", "[cpu][mixing]") {
  const Recurrent attention{.blocks = {.block = 3}, .mixing = {.states = 2}};
  const auto clean = operands<double>(attention, {1, 2, 1, 120, 120, 4, 3});
  const auto y = forward(attention, clean);
  for (const Index token : {0, 1, 5, 47, 48, 50, 119}) {
    CAPTURE(token);
    for (const bool in_key : {true, false}) {
      auto x = clean;
      (in_key ? x.k : x.v)(0, 0, token, 1) = std::numeric_limits<double>::quiet_NaN();
      const auto poisoned = forward(attention, x);
      CHECK(bitwise_equal(batches::tokens_of(poisoned.view(), 0, 0, token),
                          batches::tokens_of(y.view(), 0, 0, token)));
      CHECK(std::isnan(poisoned(0, 0, 119, 1)));
    }
    // And no gradient comes from an earlier output.
    auto x = clean;
    x.dy(0, 0, token, 1) = std::numeric_limits<double>::quiet_NaN();
    const auto gradients = backward(attention, x);
    const auto before = backward(attention, clean);
    const Index rest = 119 - token;
    for (const auto gradient : {&call::Gradients<double>::key, &call::Gradients<double>::value})
      CHECK(bitwise_equal(batches::tokens_of((gradients.*gradient).view(), 0, token + 1, rest),
                          batches::tokens_of((before.*gradient).view(), 0, token + 1, rest)));
  }
}

TEST_CASE("mixing: a matrix for each head of each batch item", "[cpu][mixing]") {
  const Shape shape{3, 4, 2, 29, 29, 4, 3, 12};
  using Dense = Attention<EluPlusOne, Blocks1D>;
  const Dense dense{.blocks = {.block = 4}};
  const auto x = operands<double>(dense, shape);
  check_against_oracle(dense, x);
  batches::check_requests(dense, x);
  using Product = Attention<EluPlusOne, Blocks1D, Bidirectional, mhla::MixedProduct>;
  const Product product{.blocks = {.block = 4}};
  check_against_oracle(product, operands<double>(product, {3, 4, 2, 28, 28, 4, 3, 12}));
  using DenseCausal = Attention<EluPlusOne, Blocks1D, Causal, Unnormalized>;
  const DenseCausal causal{.blocks = {.block = 4}};
  check_against_oracle(causal, operands<double>(causal, shape));
}
