// SPDX-License-Identifier: MIT
// A prefix of any length and then step after step gives what the forward pass gives over the whole
// sequence, for every sort of variant and shape, and the same bits on any executor.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mhla/mixing_matrix.hpp>
#include <string>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cpu/executors.hpp"
#include "tests/cpu/scattered_tensor.hpp"
#include "tests/decoding/session.hpp"

namespace {

using namespace call;
using namespace decoding;
using namespace mhla;

using Plain = Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, NoRotation>;
using HalfSplit = Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>;
using Axial = Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, AxialRotary>;
using UnnormalizedAxial = Attention<EluPlusOne, Blocks1D, Causal, Unnormalized, AxialRotary>;
using Rowwise = Attention<Hedgehog, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>;

// Prefill of `prefix` tokens of every sequence, then single steps.
template <class V, class T>
void check_split(const V& attention, const Operands<T>& x, const call::HostTensor<T, 4>& expected,
                 Index prefix) {
  CAPTURE(prefix);
  Session<V, T> session(attention, x);
  for (Index s = 0; s < session.sequences(); ++s) session.prefill(s, prefix);
  session.step_to_the_end();
  check_decoded(session.y, expected);
}

template <class T, class V>
void check_every_split(const V& attention, const Shape& shape) {
  CAPTURE(attention.blocks.block, shape.heads, shape.kv_heads, shape.mix_heads, shape.key_dim,
          shape.value_dim);
  const Operands<T> x = operands<T>(attention, shape);
  const auto expected = forward(attention, x);
  for (Index prefix = 0; prefix <= shape.query_tokens; ++prefix)
    check_split(attention, x, expected, prefix);
}

// Four blocks of five and three tokens: {batch, heads, kv_heads, tokens, tokens, key_dim,
// value_dim, mix_heads}.
const std::vector<Shape> shapes = {
    {1, 2, 2, 23, 23, 4, 4},     // a matrix for all heads
    {2, 4, 2, 23, 23, 6, 3},     // grouped query heads
    {1, 4, 2, 23, 23, 4, 11, 4}  // and a matrix for each; more value columns than tokens in a block
};

template <class V>
void check_shapes(V attention) {
  attention.blocks.block = 5;
  for (const Shape& shape : shapes) check_every_split<double>(attention, shape);
}

}  // namespace

TEST_CASE("decoding: equals forward and the oracle at every split point", "[decoding]") {
  check_shapes(Plain{});
  check_shapes(Plain{.normalizer = {.epsilon = 0.25}, .scale = 0.375});

  const Plain attention{.blocks = {.block = 5}};
  const auto x = operands<double>(attention, shapes[1]);
  const auto expected = call::oracle_forward(attention, call::converted<long double>(x));
  for (Index prefix = 0; prefix <= 23; ++prefix) {
    CAPTURE(prefix);
    Session<Plain, double> session(attention, x);
    session.prefill(0, prefix);
    session.prefill(1, prefix);
    session.step_to_the_end();
    call::check_close("y", session.y, expected, tolerance::forward_rms<double>,
                      tolerance::forward_max<double>);
  }
}

TEST_CASE("decoding: a rotation goes on from the prefix", "[decoding]") {
  check_shapes(HalfSplit{.rotation = {.theta = 100}});
  check_shapes(Axial{.rotation = {.theta = 100}});
}

TEST_CASE("decoding: without a normalizer", "[decoding]") {
  check_shapes(UnnormalizedAxial{.rotation = {.theta = 100}, .scale = 0.5});
}

TEST_CASE("decoding: a feature map of whole rows with more features than key_dim", "[decoding]") {
  check_shapes(Rowwise{.rotation = {.theta = 100}});
}

TEMPLATE_TEST_CASE("decoding: in float, and from 16 bits", "[decoding]", float, mhla::BFloat16,
                   mhla::Half) {
  const HalfSplit attention{.blocks = {.block = 5}};
  for (const Shape& shape : shapes) check_every_split<TestType>(attention, shape);
}

TEST_CASE("decoding: blocks of one token, of two, and one block only", "[decoding]") {
  for (const Index block : {1, 2, 9, 12}) {
    const HalfSplit attention{.blocks = {.block = block}};
    check_every_split<double>(attention, {1, 4, 2, 9, 9, 4, 3, 4});
    check_every_split<double>(attention, {2, 2, 1, 9, 9, 2, 1});
  }
}

TEST_CASE("decoding: sequences of different lengths in one batch", "[decoding]") {
  const HalfSplit attention{.blocks = {.block = 5}};
  const auto x = operands<double>(attention, {4, 4, 2, 23, 23, 4, 3, 4});
  const auto expected = forward(attention, x);
  const std::vector<Index> prefix = {3, 0, 15, 7};
  for (const Index count : {1, 2, 7}) {
    CAPTURE(count);
    Session<HalfSplit, double> session(attention, x);
    for (Index s = 0; s < 4; ++s) session.prefill(s, prefix[static_cast<std::size_t>(s)]);
    const Index steps = (23 - 15) / count;
    for (Index n = 0; n < steps; ++n) session.step(count);
    for (Index s = 0; s < 4; ++s) {
      CHECK(session.decoder.position(s) == prefix[static_cast<std::size_t>(s)] + steps * count);
      session.prefill(s, 23 - session.decoder.position(s));
    }
    check_decoded(session.y, expected);
  }
}

TEST_CASE("decoding: the same bits on any executor", "[decoding]") {
  const HalfSplit attention{.blocks = {.block = 5}};
  const auto x = operands<double>(attention, {3, 6, 3, 23, 23, 4, 3, 6});
  const auto run = [&](const auto& executor) {
    Session<HalfSplit, double> session(attention, x, 8);
    for (const Index s : {0, 1, 2}) session.prefill(s, 2 * s + 1, executor);
    for (const Index count : {1, 1, 1, 1, 3, 1, 6}) session.step(count, executor);
    for (const Index s : {0, 1, 2}) session.prefill(s, 23 - session.decoder.position(s), executor);
    return session.y;
  };
  const auto serial = run(mhla::SerialExecutor{});
  check_decoded(serial, forward(attention, x));
  for (const Index count : {1, 2, 3, 8}) {
    CAPTURE(count);
    CHECK(bitwise_equal(run(executors::ThreadExecutor{count}).view(), serial.view()));
    CHECK(bitwise_equal(run(executors::ShuffledExecutor{count}).view(), serial.view()));
  }
}

TEST_CASE("decoding: any strides, and nothing written between the elements", "[decoding]") {
  const Rowwise attention{.blocks = {.block = 5}};
  const auto x = operands<double>(attention, {2, 4, 2, 23, 23, 4, 3, 4});
  const auto run = [&](auto q, auto k, auto v, auto y) {
    mhla::Decoder<Rowwise, double> decoder(attention, x.mix, decoding::decoder_shape(x));
    decoder.prefill(1, tokens_of(q, 1, 0, 7), tokens_of(k, 1, 0, 7), tokens_of(v, 1, 0, 7),
                    tokens_of(y, 1, 0, 7));
    decoder.reset();
    for (Index at = 0; at < 23; ++at) {
      const auto now = [&](auto view) {
        view.data += at * view.stride[2];
        view.extent[2] = 1;
        return view;
      };
      decoder.step(now(q), now(k), now(v), now(y));
    }
  };
  auto y = x.dy;
  run(x.q.view(), x.k.view(), x.v.view(), y.view());
  check_decoded(y, forward(attention, x));
  for (std::uint64_t seed = 0; seed < 100; seed += 10) {
    CAPTURE(seed);
    ScatteredTensor<double, 4> q(x.q, seed), k(x.k, seed + 1), v(x.v, seed + 2),
        out(x.dy, seed + 3);
    run(q.view(), k.view(), v.view(), out.view());
    CHECK(bitwise_equal(out.view(), y.view()));
    CHECK(out.guards_intact());
  }
}

TEST_CASE("decoding: a NaN reaches no token before its own", "[decoding]") {
  const HalfSplit attention{.blocks = {.block = 6}};
  const auto clean = operands<double>(attention, {1, 2, 1, 23, 23, 4, 3});
  constexpr Index token = 15;
  const std::string where = GENERATE(as<std::string>(), "query", "key", "value");
  CAPTURE(where);
  auto poisoned = clean;
  auto& tensor = where == "query" ? poisoned.q : where == "key" ? poisoned.k : poisoned.v;
  tensor(0, 0, token, 1) = std::numeric_limits<double>::quiet_NaN();
  for (const Index count : {1, 4, 23}) {
    CAPTURE(count);
    Session<HalfSplit, double> before(attention, clean);
    Session<HalfSplit, double> after(attention, poisoned);
    before.step_to_the_end(count);
    after.step_to_the_end(count);
    CHECK(bitwise_equal(tokens_of(after.y.view(), 0, 0, token),
                        tokens_of(before.y.view(), 0, 0, token)));
    CHECK(std::isnan(after.y(0, 0, token, 1)));
    CHECK(std::isnan(after.y(0, 0, 22, 1)) == (where != "query"));
  }
}

TEST_CASE("decoding: beyond the blocks that were trained, with an extended matrix",
          "[decoding][mixing_matrix]") {
  const HalfSplit attention{.blocks = {.block = 5}};
  const auto trained = operands<double>(attention, {1, 4, 2, 10, 10, 4, 3, 4});
  auto x = operands<double>(attention, {1, 4, 2, 23, 23, 4, 3, 4});
  for (const auto extension : {mhla::Extension::causal_average, mhla::Extension::last_row}) {
    mhla::extend(trained.mix.view(), x.mix.view(), extension);
    const auto expected = forward(attention, x);
    for (Index prefix = 0; prefix <= 23; ++prefix) check_split(attention, x, expected, prefix);

    // With a still larger matrix it is the same to the bit: a row does not depend on the size.
    Session<HalfSplit, double> session(attention, x);
    session.step_to_the_end();
    auto more = x;
    more.mix = call::HostTensor<double, 3>(4, 9, 9);
    mhla::extend(trained.mix.view(), more.mix.view(), extension);
    Session<HalfSplit, double> longer(attention, more);
    CHECK(longer.decoder.capacity() == 45);
    longer.step_to_the_end();
    CHECK(bitwise_equal(longer.y.view(), session.y.view()));
  }
}
