// SPDX-License-Identifier: MIT
// A packed batch is the loop over its sequences: the same bits forward and backward, whatever their
// lengths, with what is wrong with the offsets said before anything is written.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mhla/packed.hpp>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/packed/cut.hpp"
#include "tests/packed/requests.hpp"
#include "tests/packed/units.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace batches;
using namespace call;
using call::Gradients;
using namespace mhla;

template <class Causality>
using Normalized = Attention<EluPlusOne, Blocks1D, Causality, MixedKeySum, AxialRotary>;
using Rowwise = Attention<Softmax, Blocks1D, Causal, Unnormalized, HalfSplitRotary>;

// Where a query sees few keys, gradients of normalized sums nearly cancel, and those of one key are
// nothing but epsilon: against the oracle it is as large as the sums.
template <class Causality>
constexpr Normalized<Causality> with_epsilon(Index block, double epsilon) {
  return {.blocks = {.block = block}, .normalizer = {.epsilon = epsilon}};
}

using Lengths = std::vector<Index>;

template <class Offset>
std::vector<Offset> offsets_of(const Lengths& lengths) {
  std::vector<Offset> offsets = {0};
  for (const Index length : lengths)
    offsets.push_back(offsets.back() + static_cast<Offset>(length));
  return offsets;
}

// A call on packed sequences; mix has `spare` blocks more than the longest needs.
template <class V>
Operands<double> packed_operands(const V& attention, const Lengths& lengths, Index heads,
                                 Index kv_heads, Index mix_heads, Index spare = 0) {
  const Index tokens = std::accumulate(lengths.begin(), lengths.end(), Index{0});
  const Index longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const Index blocks = mhla::ceil_div(longest, attention.blocks.block) + spare;
  return operands<double>(attention,
                          {1, heads, kv_heads, tokens, tokens, 4, 3, mix_heads, blocks, blocks});
}

void add_to(HostTensor<double, 3>& sum, const HostTensor<double, 3>& term) {
  for (std::size_t i = 0; i < sum.elements().size(); ++i) sum.elements()[i] += term.elements()[i];
}

// By one path packed is the loop, to the bit, and by each the oracle's loop.
template <class Offset, class V>
void check_is_the_loop(V attention, Path path, const Lengths& lengths, const Operands<double>& x) {
  attention.path = path;
  CAPTURE(lengths, sizeof(Offset), x.q.extent(1), x.k.extent(1), x.mix.extent(0), x.mix.extent(1));
  const std::vector<Offset> offsets = offsets_of<Offset>(lengths);
  const auto packed = mhla::packed(attention, offsets);
  const auto y = forward(packed, x);
  const Gradients<double> gradients = backward(packed, x);

  V single = attention;
  single.mixing.leading_corner = true;
  HostTensor<double, 4> loop_y = x.dy;
  Gradients<double> loop(x);
  HostTensor<long double, 4> oracle_y = call::converted<long double>(x).dy;
  Gradients<long double> oracle(call::converted<long double>(x));
  loop.mix = HostTensor<double, 3>::like(x.mix.view());
  oracle.mix = HostTensor<long double, 3>::like(x.mix.view());
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const Index first = static_cast<Index>(offsets[s]);
    const Operands<double> alone = cut(x, 0, first, lengths[s]);
    const auto paste = [&](auto& all, const auto& part) {
      copy(tokens_of(all.view(), 0, first, lengths[s]), part.view());
    };
    const auto one = backward(single, alone);
    paste(loop_y, forward(single, alone));
    paste(loop.query, one.query);
    paste(loop.key, one.key);
    paste(loop.value, one.value);
    add_to(loop.mix, one.mix);

    const auto wide = call::converted<long double>(alone);
    const auto exact = call::oracle_backward(single, wide);
    paste(oracle_y, call::oracle_forward(single, wide));
    paste(oracle.query, exact.query);
    paste(oracle.key, exact.key);
    paste(oracle.value, exact.value);
    for (std::size_t i = 0; i < oracle.mix.elements().size(); ++i)
      oracle.mix.elements()[i] += exact.mix.elements()[i];
  }
  CHECK(bitwise_equal(y.view(), loop_y.view()));
  CHECK(bitwise_equal(gradients.query.view(), loop.query.view()));
  CHECK(bitwise_equal(gradients.key.view(), loop.key.view()));
  CHECK(bitwise_equal(gradients.value.view(), loop.value.view()));
  call::check_close("y", y, oracle_y, tolerance::forward_rms<double>,
                    tolerance::forward_max<double>);
  call::check_close(gradients, loop);
  call::check_close(gradients, oracle);
}
template <class Offset, class V>
void check_is_the_loop(const V& attention, const Lengths& lengths, const Operands<double>& x) {
  check_is_the_loop<Offset>(attention, Path::linear, lengths, x);
  if (mhla::cpu::has_quadratic_path<V>)
    check_is_the_loop<Offset>(attention, Path::quadratic, lengths, x);
}

const std::vector<Lengths> batches_of_sequences = {
    {7, 12, 3},                                 // ragged last blocks, several blocks and fewer
    {0, 9},                                     // nothing first,
    {9, 0, 5},                                  // in the middle,
    {6, 0},                                     // last,
    {0, 0, 4, 0, 0, 0, 11, 1, 0, 0},            // and several times in a row
    {1},                                        // one token
    {13},                                       // one sequence
    {5, 5, 5},                                  // as a batch would have it
    {1, 1, 1, 1, 1, 2},                         // shorter than a block
    {0, 0},                                     // nothing at all
    {},                                         //
    {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7}  // many
};

template <class V>
void check_variant(const V& attention) {
  constexpr bool wide = backend::runs_all_cases || std::is_same_v<V, Rowwise>;
  using Wide = std::conditional_t<wide, std::int64_t, std::int32_t>;
  for (const Lengths& lengths : batches_of_sequences) {
    const auto shared = packed_operands(attention, lengths, 4, 2, 1);
    check_is_the_loop<std::int32_t>(attention, lengths, shared);
    const auto per_head = packed_operands(attention, lengths, 4, 2, 4, 2);
    check_is_the_loop<Wide>(attention, lengths, per_head);
  }
}

// What outside the corner of mix that the longest sequence needs must be left alone.
template <class V>
void check_outside_the_corner(const V& attention) {
  const Lengths lengths = {6, 0, 10, 2};  // blocks of 4: a corner of 3
  const auto offsets = offsets_of<std::int64_t>(lengths);
  const auto packed = mhla::packed(attention, offsets);
  auto x = packed_operands(attention, lengths, 4, 2, 4, 2);
  const Gradients<double> gradients = backward(packed, x);
  const Gradients<double> before(x);
  Gradients<double> sums(x);
  backward_to(sums.views(), Update::accumulate, packed, x);
  for (Index h = 0; h < 4; ++h)
    for (Index i = 0; i < 5; ++i)
      for (Index b = 0; b < 5; ++b) {
        CAPTURE(h, i, b);
        if (i >= 3 || b >= 3) {
          CHECK(gradients.mix(h, i, b) == 0);
          CHECK(sums.mix(h, i, b) == before.mix(h, i, b));
        } else {
          CHECK(sums.mix(h, i, b) == before.mix(h, i, b) + gradients.mix(h, i, b));
        }
      }
  for (Index n = 0; n < x.q.size(); ++n) {
    const auto i = static_cast<std::size_t>(n);
    CHECK(sums.query.elements()[i] == before.query.elements()[i] + gradients.query.elements()[i]);
    CHECK(sums.query.elements()[i] != before.query.elements()[i]);
  }
  // What stands there does not matter either.
  const auto y = forward(packed, x);
  for (Index h = 0; h < 4; ++h)
    for (Index i = 0; i < 5; ++i)
      for (Index b = i < 3 ? 3 : 0; b < 5; ++b) x.mix(h, i, b) = -1e300;
  CHECK(bitwise_equal(forward(packed, x).view(), y.view()));
}

}  // namespace

TEST_CASE("packed: is the loop over its sequences", "[packed]") {
  check_variant(with_epsilon<Bidirectional>(4, 10));
}
TEST_CASE("packed: is the loop over its sequences, causal", "[packed]") {
  check_variant(with_epsilon<Causal>(4, 10));
}
TEST_CASE("packed: is the loop over its sequences, block-causal", "[packed]") {
  check_variant(with_epsilon<BlockCausal>(4, 10));
}
TEST_CASE("packed: is the loop over its sequences, whole rows without a normalizer", "[packed]") {
  check_variant(Rowwise{.blocks = {.block = 4}, .scale = 0.5});
}

TEST_CASE("packed: blocks longer than a tile, more blocks than a group of rows", "[packed]") {
  const auto long_blocks = with_epsilon<Causal>(140, 300);
  check_is_the_loop<std::int32_t>(long_blocks, {150, 3, 0, 141},
                                  packed_operands(long_blocks, {150, 3, 0, 141}, 2, 1, 1));
  const auto many_blocks = with_epsilon<Bidirectional>(2, 100);
  check_is_the_loop<std::int64_t>(many_blocks, {97, 5, 0, 66, 70},
                                  packed_operands(many_blocks, {97, 5, 0, 66, 70}, 2, 1, 2));
}

TEST_CASE("packed: the gradient of a larger mixing matrix ends at its corner", "[packed]") {
  check_outside_the_corner(Normalized<Bidirectional>{.blocks = {.block = 4}});
  check_outside_the_corner(Normalized<Causal>{.blocks = {.block = 4}});
  check_outside_the_corner(Normalized<BlockCausal>{.blocks = {.block = 4}});
}

TEMPLATE_TEST_CASE("packed: what is asked for, from saved summaries, on any executor", "[packed]",
                   Bidirectional, Causal, BlockCausal) {
  const Normalized<TestType> attention{.blocks = {.block = 4}};
  const Lengths lengths = {6, 0, 10, 2, 9};
  const auto offsets = offsets_of<std::int32_t>(lengths);
  const auto packed = mhla::packed(attention, offsets);
  const auto x = packed_operands(attention, lengths, 4, 2, GENERATE(1, 4), 1);
  batches::check_requests(packed, x);
}

TEST_CASE("packed: a sequence does not see its neighbours", "[packed]") {
  const Normalized<Bidirectional> attention{.blocks = {.block = 4}};
  const Lengths lengths = {6, 5, 7};
  const auto offsets = offsets_of<std::int64_t>(lengths);
  const auto packed = mhla::packed(attention, offsets);
  const auto x = packed_operands(attention, lengths, 2, 1, 1);
  auto other = x;
  for (const Index token : {5, 11})  // the last before it, and the first after it
    for (Index c = 0; c < 4; ++c) other.k(0, 0, token, c) = 1e200;
  const auto before = forward(packed, x);
  const auto after = forward(packed, other);
  CHECK(bitwise_equal(tokens_of(after.view(), 0, 6, 5), tokens_of(before.view(), 0, 6, 5)));
  CHECK(!bitwise_equal(tokens_of(after.view(), 0, 0, 6), tokens_of(before.view(), 0, 0, 6)));
}

TEMPLATE_TEST_CASE("packed: says what is wrong with the offsets, and writes nothing", "[packed]",
                   std::int32_t, std::int64_t) {
  using Offsets = std::vector<TestType>;
  const Normalized<Causal> attention{.blocks = {.block = 4}};
  const auto x = packed_operands(attention, {6, 6}, 2, 1, 1);
  const Offsets good = {0, 6, 12};
  const auto expected = forward(mhla::packed(attention, good), x);
  const backend::Device device = backend::device();
  const mhla::Workspace workspace(std::max(
      mhla::forward_workspace_size<double>(mhla::packed(attention, good), x.shape(), device),
      mhla::backward_workspace_size<double>(mhla::packed(attention, good), x.shape(), device)));

  const auto refuse = [&](const auto& variant, const Operands<double>& call, const auto&... parts) {
    auto y = call.dy;
    Gradients<double> gradients(call), before(call);
    const std::string by_forward = error_message<ShapeError>([&] {
      forward_into(variant, device, call.q, call.k, call.v, call.mix, y.view(), workspace);
    });
    const std::string by_backward = error_message<ShapeError>([&] {
      backward_into(variant, device, call.q.view(), call.k, call.v, call.mix, call.dy,
                    gradients.views(), Update::overwrite, workspace);
    });
    const std::string by_size = error_message<ShapeError>(
        [&] { mhla::forward_workspace_size<double>(variant, call.shape(), device); });
    INFO(by_forward);
    CHECK(says(by_forward, "mhla: ", parts...));
    CHECK(by_backward == by_forward);
    CHECK(by_size == by_forward);
    CHECK(bitwise_equal(y.view(), call.dy.view()));
    call::check_same_bits(gradients, before);
    CHECK(bitwise_equal(forward(mhla::packed(attention, good), x).view(), expected.view()));
  };
  const auto refuse_offsets = [&](const Offsets& offsets, const auto&... parts) {
    CAPTURE(offsets);
    refuse(mhla::packed(attention, offsets), x, parts...);
  };
  refuse_offsets({}, "offsets: is empty", "n sequences have n + 1 offsets");
  refuse_offsets({1, 6, 12}, "offsets[0] is 1 but must be 0");
  refuse_offsets({-1, 6, 12}, "offsets[0] is -1 but must be 0");
  refuse_offsets({0, 7, 6, 12}, "offsets[2] is 6, less than the 7 before it", "never fall");
  refuse_offsets({0, -6, 12}, "offsets[1] is -6, less than the 0 before it");
  refuse_offsets({0, 20, 12}, "offsets[2] is 12, less than the 20 before it");
  refuse_offsets({0, 6, 11}, "offsets[2] is 11 but must be 12", "the number of tokens of q");
  refuse_offsets({0, 6, 13}, "offsets[2] is 13 but must be 12");
  refuse_offsets({0}, "offsets[0] is 0 but must be 12");
  refuse_offsets({0, 0, 12}, "mix: axis query blocks is 2 but must be 3");

  const auto two = operands<double>(attention, {2, 2, 1, 12, 12, 4, 3, 1, 2, 2});
  refuse(mhla::packed(attention, good), two, "q: axis batch is 2 but must be 1");
  const Normalized<Bidirectional> bidirectional{.blocks = {.block = 4}};
  const auto cross = operands<double>(bidirectional, {1, 2, 1, 12, 8, 4, 3, 1, 3, 3});
  refuse(mhla::packed(bidirectional, good), cross, "k: axis tokens is 8 but must be 12");
  refuse(mhla::packed(Normalized<Bidirectional>{.blocks = {.block = 4}, .key_blocks = {.block = 4}},
                      good),
         x, "key_blocks: packed sequences attend to themselves");
  refuse(mhla::packed(Normalized<Causal>{}, good), x, "blocks.block is 0");
}
