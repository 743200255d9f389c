// SPDX-License-Identifier: MIT
// Decoding by a recurrence: what the forward pass gives, in a state that does not grow.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cpu/executors.hpp"
#include "tests/decoding/session.hpp"
#include "tests/support/allocation_counter.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace call;
using namespace decoding;
using namespace mhla;

using Rotated =
    Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary, RecurrentMixing>;
using Plain = Attention<EluPlusOne, Blocks1D, Causal, Unnormalized, NoRotation, RecurrentMixing>;

// Blocks of five tokens: {batch, heads, kv_heads, tokens, tokens, key_dim, value_dim, mix_heads,
// rows, columns of two states}.
const std::vector<Shape> shapes = {
    {1, 2, 2, 98, 98, 4, 4, 1, 20, 7},  // parameters for all heads; a block more than there are
    {2, 4, 2, 33, 33, 6, 3, 4, 7, 7},   // for each head
    {2, 4, 2, 33, 33, 4, 11, 8, 7, 7},  // and sequence; more value columns than tokens in a block
    {1, 2, 1, 33, 33, 4, 3, 2, 7, 7}};

}  // namespace

TEST_CASE("recurrent decoding: equals forward and the oracle at every split point", "[decoding]") {
  for (const Shape& shape : shapes) {
    CAPTURE(shape.heads, shape.kv_heads, shape.mix_heads, shape.value_dim);
    const Rotated attention{.blocks = {.block = 5}, .mixing = {.states = 2}};
    const auto x = operands<double>(attention, shape);
    const auto expected = call::oracle_forward(attention, call::converted<long double>(x));
    check_decoded(forward(attention, x), mhla::testing::converted<double>(expected));
    for (Index prefix = 0; prefix <= shape.query_tokens; prefix += prefix < 12 ? 1 : 7) {
      CAPTURE(prefix);
      Session<Rotated, double> session(attention, x);
      for (Index s = 0; s < session.sequences(); ++s) session.prefill(s, prefix);
      session.step_to_the_end();
      check_decoded(session.y, mhla::testing::converted<double>(expected));
    }
  }
}

TEST_CASE("recurrent decoding: one row of parameters serves any number of blocks", "[decoding]") {
  const Plain attention{.blocks = {.block = 5}, .mixing = {.states = 2}};
  const auto x = operands<double>(attention, {2, 4, 2, 203, 203, 4, 3, 4, 1, 7});
  const auto expected = forward(attention, x);
  for (const Index count : {1, 3, 5, 8, 64, 203}) {
    CAPTURE(count);
    Session<Plain, double> session(attention, x);
    session.step_to_the_end(count);
    check_decoded(session.y, expected);
  }
}

TEST_CASE("recurrent decoding: the state does not grow with the blocks", "[decoding]") {
  const Plain attention{.blocks = {.block = 5}, .mixing = {.states = 2}};
  const auto few = operands<double>(attention, {1, 4, 2, 5, 5, 4, 3, 4, 1, 7});
  const auto many = operands<double>(attention, {1, 4, 2, 5, 5, 4, 3, 4, 1000, 7});
  Decoder<Plain, double> small(attention, few.mix, decoder_shape(few));
  Decoder<Plain, double> large(attention, many.mix, decoder_shape(many));
  CHECK(small.saved_size() == large.saved_size());
  CHECK(large.capacity() == 5000);
  CHECK(small.capacity() >= Index{1} << 56);
  // Two states for each of the four heads, two blocks of tokens and of P_i, and what lines them up.
  const Index summary = 4 * 3;
  const Index elements = 4 * 2 * summary + 2 * (2 * 5 * (4 + 3) + 4 * summary);
  CHECK(small.saved_size() < elements * Index{sizeof(double)} + 2 * 8 * 64 + 256);
}

TEST_CASE("recurrent decoding: says what limits a sequence", "[decoding]") {
  using Mix = call::HostTensor<double, 3>;
  const Rotated attention{.blocks = {.block = 4}, .mixing = {.states = 2}};
  DecoderShape sizes{.key_dim = 4, .value_dim = 3};
  const auto message = [&](const Mix& mix) {
    return error_message<ShapeError>([&] { Decoder<Rotated, double>(attention, mix, sizes); });
  };
  CHECK(says(message(Mix(1, 1, 7)), "mhla: max_tokens: is 0; a single row of mix limits no"));
  CHECK(says(message(Mix(1, 5, 6)), "mhla: mix: axis columns is 6 but must be 7"));
  CHECK(says(message(Mix(2, 5, 7)), "mhla: mix: axis heads is 2 but must be 1"));
  sizes.max_tokens = -1;
  CHECK(says(message(Mix(1, 1, 7)), "mhla: max_tokens is -1 but must be at least 0"));
  sizes.max_tokens = 6;
  Decoder<Rotated, double> six(attention, Mix(1, 1, 7), sizes);
  CHECK(six.capacity() == 6);
  const call::HostTensor<double, 4> q(1, 1, 7, 4), v(1, 1, 7, 3);
  call::HostTensor<double, 4> y = v;
  const auto no_room = [&](auto& decoder) {
    return error_message<StateError>([&] { decoder.step(q, q, v, y.view()); });
  };
  CHECK(says(no_room(six), " + 7 tokens exceed max_tokens, 6"));
  sizes.max_tokens = 4;  // mix limits it
  const Rotated of_two{.blocks = {.block = 2}, .mixing = {.states = 2}};
  Decoder<Rotated, double> two(of_two, Mix(1, 2, 7), sizes);
  CHECK(says(no_room(two), " + 7 tokens exceed the rows of mix, for 4; mhla::extend"));
}
