// SPDX-License-Identifier: MIT
// Precision::fast: whole calls with bfloat16 tensors are as close to the oracle as their rounding
// allows, for every kind of call, with the same bits on every executor; everything else keeps the
// bits of Precision::exact. Values have a mean: what normalizes is rounded as what it divides.
//
// Compiled twice: for the machine's instruction, where it has one and otherwise Precision::fast
// changes nothing, and with MHLA_PAIR_PRODUCTS_STAND_IN for stand-ins on every machine.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <mhla/cpu/describe.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/packed.hpp>
#include <mhla/stages.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cpu/executors.hpp"
#include "tests/cpu/scattered_tensor.hpp"
#include "tests/decoding/session.hpp"
#include "tests/packed/cut.hpp"

namespace {

using call::bitwise_equal;
using call::Gradients;
using call::HostTensor;
using call::Operands;
using call::ScatteredTensor;
using executors::ShuffledExecutor;
using executors::ThreadExecutor;
using namespace mhla;

using Plain = Attention<Relu, Blocks1D>;
using Shifted = Attention<EluPlusOne, Blocks1D>;  // its features have a common part
using Tokens = Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>;
using SumsAlone = Attention<Relu, Blocks1D, Bidirectional, Unnormalized>;
using Frames = Attention<Relu, Blocks1D, BlockCausal, Unnormalized>;  // exact
using Image = Attention<EluPlusOne, Blocks2D, Bidirectional, MixedProduct, AxialRotary>;
using Past = Attention<Relu, Blocks1D, Causal, Unnormalized>;
using Recurrent = Attention<Relu, Blocks1D, Causal, Unnormalized, NoRotation, RecurrentMixing>;
using RecurrentMeans = Attention<Relu, Blocks1D, Causal, MixedKeySum, NoRotation, RecurrentMixing>;
using Rowwise = Attention<Hedgehog, Blocks1D, Causal, Unnormalized>;

// Rounds on the linear path alone.
template <class V>
V linear(V attention) {
  attention.path = mhla::Path::linear;
  return attention;
}
template <class V>
V fast(V attention) {
  attention.precision = Precision::fast;
  return linear(attention);
}

// call::operands whose values have mean 1.
template <class T, class V>
Operands<T> operands(const V& attention, const Shape& shape, std::uint64_t seed = 1) {
  Operands<T> x = call::operands<T>(attention, shape, seed);
  for (T& v : x.v.elements()) mhla::store(v, static_cast<mhla::Accumulator<T>>(mhla::load(v) + 1));
  return x;
}
template <class V>
Operands<BFloat16> operands(const V& attention, const Shape& shape, std::uint64_t seed = 1) {
  return operands<BFloat16>(attention, shape, seed);
}

// Of a result rounded to bfloat16, at most 2^-9 of each element and 0.58 of it in RMS, 1.1e-3, and
// of as many factors: S~ and what it is made of, m, and phi(q), whose errors average out. Of
// gradients the largest is dk's, of U, dS~, dS and itself. One element is off by a few of these,
// and where terms of both signs cancel, in units of the RMS.
struct Bounds {
  double forward = 3e-3;
  double largest = 5e-2;
  double gradient = 5e-3;
};

template <class V>
void check_forward(const V& attention, const Operands<BFloat16>& x, const Bounds& bounds = {}) {
  call::check_close("y", call::forward(fast(attention), x),
                    call::oracle_forward(attention, call::converted<double>(x)), bounds.forward,
                    bounds.largest);
}
template <class T>
void check_gradients(const Gradients<BFloat16>& actual, const Gradients<T>& expected,
                     const Bounds& bounds = {}) {
  constexpr double any = std::numeric_limits<double>::infinity();
  call::check_close("dq", actual.query, expected.query, bounds.gradient, any);
  call::check_close("dk", actual.key, expected.key, bounds.gradient, any);
  call::check_close("dv", actual.value, expected.value, bounds.gradient, any);
  call::check_close("dmix", actual.mix, expected.mix, bounds.gradient, any);
}
template <class V>
void check_backward(const V& attention, const Operands<BFloat16>& x, const Bounds& bounds = {}) {
  check_gradients(call::backward(fast(attention), x),
                  call::oracle_backward(attention, call::converted<double>(x)), bounds);
}
template <class V>
void check(const V& attention, const Shape& shape, const Bounds& bounds = {}) {
  CAPTURE(shape.heads, shape.kv_heads, shape.query_tokens, shape.key_tokens, shape.key_dim,
          shape.value_dim, shape.mix_heads);
  const Operands<BFloat16> x = operands(attention, shape);
  check_forward(attention, x, bounds);
  check_backward(attention, x, bounds);
}

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

// Every element of token `token` of one head.
template <class T>
void fill_token(HostTensor<T, 4>& tensor, Index head, Index token, float value) {
  for (Index c = 0; c < tensor.extent(3); ++c) mhla::store(tensor(0, head, token, c), value);
}

// Whether rows [begin, end) of a head have the same bits.
bool has_rows(const HostTensor<BFloat16, 4>& actual, const HostTensor<BFloat16, 4>& expected,
              Index head, Index begin, Index end) {
  for (Index t = begin; t < end; ++t)
    for (Index c = 0; c < actual.extent(3); ++c)
      if (actual(0, head, t, c).bits != expected(0, head, t, c).bits) return false;
  return true;
}

}  // namespace

// Whole vectors, parts of one, odd dimensions, and what is packed in one step.
TEST_CASE("precision: every head dimension", "[cpu]") {
  const auto [key_dim, value_dim] = GENERATE(table<Index, Index>({{32, 32},
                                                                  {32, 136},
                                                                  {136, 32},
                                                                  {33, 34},
                                                                  {34, 40},
                                                                  {47, 48},
                                                                  {64, 64},
                                                                  {72, 72},
                                                                  {135, 64},
                                                                  {64, 135}}));
  CAPTURE(key_dim, value_dim);
  const Index even = key_dim + key_dim % 2;
  // With an epsilon: else y is almost the same for every query.
  check(Plain{.blocks = {.block = 9}, .normalizer = {.epsilon = 5}},
        {1, 2, 2, 61, 61, key_dim, value_dim});
  check(Past{.blocks = {.block = 12}}, {1, 2, 2, 61, 61, key_dim, value_dim});
  check(Shifted{.blocks = {.block = 9}, .normalizer = {.epsilon = 5}},
        {1, 2, 2, 61, 61, key_dim, value_dim});
  check(Tokens{.blocks = {.block = 12}}, {1, 2, 2, 61, 61, even, value_dim});
  check(SumsAlone{.blocks = {.block = 9}}, {1, 2, 2, 61, 61, key_dim, value_dim});
  check(Image{.blocks = {.grid = {6, 8}, .block = {3, 4}}}, {1, 2, 2, 48, 48, even, value_dim});
  if (key_dim < 48) check(Rowwise{.blocks = {.block = 12}}, {1, 2, 2, 61, 61, key_dim, value_dim});
}

// With one block dmix, but for a large epsilon, nearly cancels; without a normalizer it is a sum of
// terms of either sign.
TEST_CASE("precision: from one block to many, whole ones and ragged", "[cpu][figures]") {
  const Index blocks = GENERATE(1, 2, 3, 7, 8, 9, 16, 17, 64, 256);
  CAPTURE(blocks);
  const Index block = blocks < 20 ? 5 : blocks < 100 ? 4 : 1;
  const Index tokens = block * blocks - (block > 1 && blocks % 3 > 0 ? 1 : 0);
  const MixedKeySum normalizer{.epsilon = static_cast<double>(5 * block)};
  check(Plain{.blocks = {.block = block}, .normalizer = normalizer},
        {1, 1, 1, tokens, tokens, 32, 40});
  check(Past{.blocks = {.block = block}}, {1, 8, 2, tokens, tokens, 32, 40, 8});
  check(Tokens{.blocks = {.block = block}, .normalizer = normalizer},
        {1, 1, 1, tokens, tokens, 34, 40});
  check(SumsAlone{.blocks = {.block = block}}, {1, 8, 2, tokens, tokens, 34, 40, 8});
  check(
      Image{.blocks = {.grid = {block, blocks}, .block = {block, 1}}, .normalizer = {.epsilon = 5}},
      {1, 1, 1, block * blocks, block * blocks, 32, 40});
}

TEST_CASE("precision: grouped heads, one matrix or one for each, keys of another grid", "[cpu]") {
  for (const Index mix_heads : {1, 6})
    for (const Index kv_heads : {1, 2, 6}) {
      check(Plain{.blocks = {.block = 7},
                  .key_blocks = {.block = 4},
                  .mixing = {.leading_corner = true},
                  .scale = 0.375},
            {2, 6, kv_heads, 40, 29, 33, 40, mix_heads, 9, 11});  // mix larger than the layout
      check(Past{.blocks = {.block = 6}}, {2, 6, kv_heads, 40, 40, 33, 40, mix_heads});
      check(Tokens{.blocks = {.block = 6}, .scale = 0.375},
            {2, 6, kv_heads, 40, 40, 34, 40, mix_heads});
      check(SumsAlone{.blocks = {.block = 7}}, {2, 6, kv_heads, 40, 40, 33, 40, mix_heads});
      check(Image{.blocks = {.grid = {4, 10}, .block = {2, 5}}, .scale = 0.375},
            {2, 6, kv_heads, 40, 40, 34, 40, mix_heads});
    }
}

TEST_CASE("precision: empty axes, heads of few features or values, and block-causal calls",
          "[cpu]") {
  const auto same = [](const auto& attention, const Shape& shape) {
    const Operands<BFloat16> x = operands(attention, shape);
    CHECK(bitwise_equal(call::forward(fast(attention), x).view(),
                        call::forward(linear(attention), x).view()));
    Gradients<BFloat16> gradients = call::backward(fast(attention), x);
    Gradients<BFloat16> expected = call::backward(linear(attention), x);
    call::check_same_bits(gradients, expected);
  };
  for (const Shape& shape :
       {Shape{1, 2, 1, 9, 9, 0, 40}, Shape{1, 2, 1, 9, 9, 40, 0}, Shape{1, 2, 1, 0, 0, 40, 33},
        Shape{0, 2, 1, 9, 9, 40, 33}, Shape{1, 0, 0, 9, 9, 40, 33},
        // Too few features or values for errors to average out.
        Shape{1, 2, 1, 9, 9, 31, 64}, Shape{1, 2, 1, 9, 9, 64, 31}}) {
    CAPTURE(shape.batch, shape.heads, shape.query_tokens, shape.key_dim, shape.value_dim);
    same(Plain{.blocks = {.block = 4}}, shape);
    same(Past{.blocks = {.block = 4}}, shape);
  }
  same(Frames{.blocks = {.block = 30}}, {1, 2, 1, 60, 60, 34, 33});
}

TEST_CASE("precision: a packed batch is the loop over its sequences", "[cpu]") {
  const auto check_packed = [](const auto& attention) {
    const std::vector<std::int64_t> offsets = {0, 19, 19, 20, 63, 70};
    const Operands<BFloat16> x = operands(attention, {1, 4, 2, 70, 70, 34, 33, 4, 9, 9});
    const auto batch = mhla::packed(fast(attention), offsets);
    const auto y = call::forward(batch, x);
    const Gradients<BFloat16> gradients = call::backward(batch, x);
    Gradients<double> expected(call::converted<double>(x));
    expected.mix = HostTensor<double, 3>::like(x.mix.view());
    for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
      const Index length = offsets[s + 1] - offsets[s];
      const auto alone = batches::cut(x, 0, offsets[s], length);
      CHECK(bitwise_equal(batches::tokens_of(y.view(), 0, offsets[s], length),
                          call::forward(fast(attention), alone).view()));
      if (length == 0) continue;
      const auto one = call::oracle_backward(attention, call::converted<double>(alone));
      const auto paste = [&](auto& all, const auto& part) {
        batches::copy(batches::tokens_of(all.view(), 0, offsets[s], length), part.view());
      };
      paste(expected.query, one.query);
      paste(expected.key, one.key);
      paste(expected.value, one.value);
      for (std::size_t i = 0; i < expected.mix.elements().size(); ++i)
        expected.mix.elements()[i] += one.mix.elements()[i];
    }
    check_gradients(gradients, expected);
  };
  check_packed(Plain{.blocks = {.block = 5}, .mixing = {.leading_corner = true}});
  check_packed(Past{.blocks = {.block = 5}});
}

// Masks with holes, and blocks that they empty: the first, the last, one of a pair, all.
TEST_CASE("precision: what a mask takes away takes part in nothing", "[cpu]") {
  const auto check_masks = [](const auto& attention) {
    const std::vector<std::string> rows = {"101101110110101", "000011111111111", "111100001111010",
                                           "111111111111000", "000000001111000", "000000000000000",
                                           "000000000000001", "111111111111111"};
    HostTensor<std::uint8_t, 2> mask(8, 15);
    for (Index n = 0; n < 8; ++n)
      for (Index t = 0; t < 15; ++t)
        mask(n, t) = rows[static_cast<std::size_t>(n)][static_cast<std::size_t>(t)] == '1';
    const Operands<BFloat16> clean = operands(attention, {8, 4, 2, 15, 15, 34, 33, 4});
    Operands<BFloat16> x = clean;
    for (Index n = 0; n < 8; ++n)
      for (Index t = 0; t < 15; ++t)
        for (HostTensor<BFloat16, 4>* tensor : {&x.q, &x.k, &x.v, &x.dy})
          for (Index h = 0; h < tensor->extent(1) && mask(n, t) == 0; ++h)
            for (Index c = 0; c < tensor->extent(3); ++c)
              mhla::store((*tensor)(n, h, t, c), not_a_number);
    const auto masked = mhla::padded(fast(attention), mask.view());
    const auto exact = call::converted<double>(clean);
    HostTensor<double, 4> y = exact.dy;
    mhla::reference::mhla_forward(attention, exact.q, exact.k, exact.v, exact.mix, y.view(),
                                  masked.masks);
    call::check_close("y", call::forward(masked, x), y, Bounds{}.forward, Bounds{}.largest);
    Gradients<double> expected(exact);
    mhla::reference::mhla_backward(attention, exact.q.view(), exact.k, exact.v, exact.mix, exact.dy,
                                   expected.views(), Update::overwrite, masked.masks);
    check_gradients(call::backward(masked, x), expected);
  };
  check_masks(Plain{.blocks = {.block = 4}, .normalizer = {.epsilon = 5}});
  check_masks(Past{.blocks = {.block = 4}});
}

namespace {

template <class V>
void check_executors(const V& attention, const Shape& shape) {
  const auto variant = fast(attention);
  const Operands<BFloat16> x = operands(attention, shape);
  mhla::ForwardState<float> state;
  const auto y = call::forward(variant, x);
  CHECK(bitwise_equal(call::forward(variant, x, SerialExecutor{}, &state).view(), y.view()));
  Gradients<BFloat16> gradients = call::backward(variant, x);
  Gradients<BFloat16> from_state = call::backward(variant, x, SerialExecutor{}, &state);
  const auto expected = call::oracle_backward(attention, call::converted<double>(x));
  check_gradients(gradients, expected);
  check_gradients(from_state, expected);
  const auto on = [&](const auto& executor) {
    CHECK(bitwise_equal(call::forward(variant, x, executor).view(), y.view()));
    mhla::ForwardState<float> other;
    CHECK(bitwise_equal(call::forward(variant, x, executor, &other).view(), y.view()));
    Gradients<BFloat16> again = call::backward(variant, x, executor);
    call::check_same_bits(again, gradients);
    again = call::backward(variant, x, executor, &other);
    call::check_same_bits(again, from_state);
  };
#if defined(MHLA_SMALL_PRODUCT)
  const std::initializer_list<Index> slots{7};
#else
  const std::initializer_list<Index> slots{2, 3, 7, 40};
#endif
  for (const Index num_slots : slots) {
    CAPTURE(num_slots);
    on(ShuffledExecutor{num_slots, static_cast<std::uint64_t>(num_slots)});
  }
  on(ThreadExecutor{3});
}

}  // namespace

TEST_CASE("precision: the same bits on every executor, with and without a forward state", "[cpu]") {
  SECTION("units for every slot, and some left over") {
    check_executors(Plain{.blocks = {.block = 6}}, {3, 6, 3, 45, 45, 33, 40, 6});
    check_executors(Past{.blocks = {.block = 6}}, {3, 6, 3, 45, 45, 33, 40});
    check_executors(SumsAlone{.blocks = {.block = 6}}, {3, 6, 3, 45, 45, 33, 40});
  }
  SECTION("units that slots share, in several groups of rows") {
    check_executors(Plain{.blocks = {.block = 2}}, {1, 2, 1, 151, 151, 32, 33, 2});
    check_executors(Past{.blocks = {.block = 4}}, {1, 1, 1, 303, 303, 34, 33});
    check_executors(Past{.blocks = {.block = 70}}, {1, 1, 1, 213, 213, 34, 33});
    check_executors(SumsAlone{.blocks = {.block = 4}}, {1, 2, 1, 303, 303, 33, 34});
  }
  SECTION("value columns shared out") {
    check_executors(SumsAlone{.blocks = {.block = 5}}, {1, 1, 1, 83, 83, 32, 192});
    check_executors(SumsAlone{.blocks = {.block = 5}}, {1, 2, 2, 83, 83, 48, 128});
  }
}

namespace {

// y of stages on the given ranges of blocks, with their own workspace each.
template <class V>
HostTensor<BFloat16, 4> forward_in_stages(const Stages<V, BFloat16>& stages,
                                          const Operands<BFloat16>& x,
                                          const std::vector<BlockRange>& ranges) {
  const ShuffledExecutor executor{3, 5};
  const Index blocks = stages.query_blocks().count;
  HostTensor<float, 2> summaries(blocks, stages.summary_size());
  HostTensor<float, 2> even(stages.num_states(), stages.mixture_size());
  HostTensor<float, 2> odd = even;
  const mhla::TensorView<float, 2> states[] = {even.view(), odd.view()};
  HostTensor<BFloat16, 4> y = x.dy;
  int turn = 0;
  for (const bool reads_out : {false, true})
    for (const BlockRange& range : ranges) {
      const BlockRange tokens{stages.query_tokens({0, range.first}), stages.query_tokens(range)};
      const auto part = [&](const auto& tensor) {
        return mhla::unchecked_slice(tensor.view(), 2, tokens.first, tokens.count);
      };
      const auto own = rows_of(summaries.view(), range);
      const auto mix = rows_of(x.mix.view(), stages.mix_rows(range));
      const Workspace memory(
          stages.workspace_size(reads_out ? Stage::read_out : Stage::summarize, executor, range));
      if (!reads_out) {
        stages.summarize(executor, range, part(x.k), part(x.v), own, memory);
        continue;
      }
      mhla::Sums<float> sums = summaries.view();
      if constexpr (is_structured<V>) sums = {own, states[turn]};
      stages.read_out(executor, range, {part(x.q), part(x.k), part(x.v), mix}, sums,
                      mhla::unchecked_slice(y.view(), 2, tokens.first, tokens.count), memory);
      if constexpr (is_structured<V>)
        if (range.end() < blocks) {
          const Workspace more(stages.workspace_size(Stage::advance, executor, range));
          stages.advance(executor, range, mix, sums, states[1 - turn], more);
          turn = 1 - turn;
        }
    }
  return y;
}

template <class V>
void check_stages(const V& attention, const Shape& partial) {
  const Operands<BFloat16> x = operands(attention, partial);
  const Stages<V, BFloat16> stages(fast(attention), x.shape());
  const Index blocks = stages.query_blocks().count;
  const auto y = forward_in_stages(stages, x, {{0, blocks}});
  const auto shared = forward_in_stages(stages, x, {{0, 16}, {16, 0}, {16, blocks - 16}});
  CHECK(bitwise_equal(y.view(), shared.view()));
  const auto exact = call::forward(linear(attention), x);
  CHECK(bitwise_equal(y.view(), exact.view()) != mhla::cpu::has_pair_products());
  CHECK(bitwise_equal(forward_in_stages(stages.exact(), x, {{0, blocks}}).view(), exact.view()));
  call::check_close("y", y, call::oracle_forward(attention, call::converted<double>(x)),
                    Bounds{}.forward, Bounds{}.largest);
}

}  // namespace

TEST_CASE("precision: stages round tokens' products alone, however blocks are divided", "[cpu]") {
  check_stages(Plain{.blocks = {.block = 6}}, {2, 4, 2, 117, 117, 33, 40, 4});
  check_stages(Tokens{.blocks = {.block = 6}}, {2, 4, 2, 117, 117, 34, 33});
  check_stages(Recurrent{.blocks = {.block = 6}, .mixing = {.states = 2}},
               {2, 4, 2, 117, 117, 33, 40, 4});
}

TEST_CASE("precision: so does a structured mixing, backward, too", "[cpu]") {
  const Recurrent attention{.blocks = {.block = 6}, .mixing = {.states = 2}};
  const Shape shape{2, 4, 2, 117, 117, 33, 40, 4};
  check_executors(attention, shape);
  check_forward(attention, operands(attention, shape));
  const Operands<BFloat16> x = operands(attention, shape);
  const bool rounds = mhla::cpu::has_pair_products();
  CHECK(bitwise_equal(call::forward(fast(attention), x).view(),
                      call::forward(attention, x).view()) != rounds);
  CHECK(bitwise_equal(call::backward(fast(attention), x).key.view(),
                      call::backward(attention, x).key.view()) != rounds);
}

// A decoder rounds what a query reads, and nothing that it keeps: single steps after a prefill have
// the bits of Precision::exact, and no token shows in an earlier one.
TEST_CASE("precision: a decoder's prefill is rounded, its state is not", "[cpu][figures]") {
  const auto check_decoder = [](const auto& attention, const Shape& shape, double bound) {
    CAPTURE(attention.blocks.block, shape.key_dim, shape.value_dim);
    constexpr Index steps = 3;
    const Index prompt = shape.query_tokens - steps;
    using Session = decoding::Session<std::decay_t<decltype(attention)>, BFloat16>;
    const auto decode = [&](const auto& variant, const Operands<BFloat16>& x, Index piece,
                            const auto& executor) {
      Session session(variant, x, executor.num_slots());
      for (Index s = 0; s < shape.batch; ++s)
        for (Index at = 0; at < prompt; at += piece)
          session.prefill(s, std::min(piece, prompt - at), executor);
      session.step_to_the_end(1, executor);
      return session.y;
    };
    const auto first_tokens = [](const auto& y, Index count) {
      return batches::tokens_of(y.view(), 0, 0, count);
    };
    Operands<BFloat16> x = operands(attention, shape);
    const auto expected = call::oracle_forward(attention, call::converted<double>(x));
    const auto exact = decode(attention, x, prompt, SerialExecutor{});
    for (const Index piece : {prompt, Index{29}}) {
      CAPTURE(piece);
      const auto y = decode(fast(attention), x, piece, SerialExecutor{});
      call::check_close("y", y, expected, bound, 5e-2);
      CHECK(bitwise_equal(y.view(), exact.view()) != mhla::cpu::has_pair_products());
      for (Index s = 0; s < shape.batch; ++s)
        CHECK(bitwise_equal(batches::tokens_of(y.view(), s, prompt, steps),
                            batches::tokens_of(exact.view(), s, prompt, steps)));
      CHECK(bitwise_equal(decode(fast(attention), x, piece, ThreadExecutor{3}).view(), y.view()));
      for (const Index token : {30, 64, 67})
        for (const float value : {not_a_number, infinity, 3.0f})
          for (const auto tensor : {&Operands<BFloat16>::k, &Operands<BFloat16>::v}) {
            CAPTURE(token, value, tensor == &Operands<BFloat16>::k);
            Operands<BFloat16> changed = x;
            fill_token(changed.*tensor, 1, token, value);
            const auto after = decode(fast(attention), changed, piece, SerialExecutor{});
            CHECK(bitwise_equal(first_tokens(after, token), first_tokens(y, token)));
          }
    }
    // Fewer tokens at once than are worth it.
    CHECK(bitwise_equal(decode(fast(attention), x, 15, SerialExecutor{}).view(),
                        decode(attention, x, 15, SerialExecutor{}).view()));
  };
  // A value that outweighs all others, and whose score, 257.125, is rounded to 258 for all queries.
  const Past attention{.blocks = {.block = 80}};
  Operands<BFloat16> heavy = operands(attention, {1, 1, 1, 117, 117, 34, 40});
  for (Index t = 0; t < 117; ++t) fill_token(heavy.q, 0, t, 1.0f);
  fill_token(heavy.k, 0, 37, 7.5625f);
  fill_token(heavy.v, 0, 37, 100.0f);
  std::fill(heavy.mix.elements().begin(), heavy.mix.elements().end(), 1.0f);
  const auto prefill = [&] {
    decoding::Session<Past, BFloat16> session(fast(attention), heavy);
    session.prefill(0, 117);
    return session.y;
  };
  call::check_close("y", prefill(), call::oracle_forward(attention, call::converted<double>(heavy)),
                    3e-3, 5e-2);
  // What would be taken back of an infinite value is not a number.
  mhla::store(heavy.v(0, 0, 37, 5), infinity);
  for (const auto& y : {prefill(), call::forward(fast(attention), heavy)})
    for (Index t = 37; t < 80; ++t) CHECK(mhla::load(y(0, 0, t, 5)) == infinity);

  check_decoder(Past{.blocks = {.block = 25}}, {2, 4, 2, 117, 117, 33, 40, 4}, 3e-3);
  check_decoder(Past{.blocks = {.block = 80}}, {1, 4, 2, 117, 117, 40, 33}, 3e-3);
  check_decoder(Tokens{.blocks = {.block = 32}}, {2, 2, 2, 117, 117, 34, 33}, 5e-3);
}

TEST_CASE("precision: an exact backward pass takes no summaries that were rounded", "[cpu]") {
  const auto check_saved = [](const auto& attention) {
    const auto variant = fast(attention);
    const Operands<BFloat16> x = operands(attention, {2, 4, 2, 48, 48, 32, 40});
    mhla::ForwardState<float> state;
    call::forward(variant, x, SerialExecutor{}, &state);
    Gradients<BFloat16> saved = call::backward(variant, x, SerialExecutor{}, &state);
    Gradients<BFloat16> exact = call::backward(linear(attention), x);
    call::check_same_bits(saved, exact);
  };
  check_saved(Shifted{.blocks = {.block = 6}});
  check_saved(Tokens{.blocks = {.block = 6}});
  check_saved(Rowwise{.blocks = {.block = 6}});
  check_saved(RecurrentMeans{.blocks = {.block = 6}, .mixing = {.states = 2}});
  check_saved(Image{.blocks = {.grid = {6, 8}, .block = {3, 4}}});
}

TEST_CASE("precision: a query sees nothing of later tokens, whatever they hold", "[cpu][figures]") {
  const auto check_past = [](const auto& attention, Index key_dim) {
    constexpr Index tokens = 85;
    const auto variant = fast(attention);
    const Operands<BFloat16> x = operands(attention, {1, 4, 2, tokens, tokens, key_dim, 33});
    const Operands<BFloat16> other = operands(attention, x.shape(), 7);
    const auto y = call::forward(variant, x);
    for (const Index token : {1, 2, 7, 8, 11, 29, 30, 31, 64, 65, 84}) {
      CAPTURE(token);

      // Other numbers: the same bits.
      Operands<BFloat16> changed = x;
      const auto change = [&](auto& to, const auto& from) {
        batches::copy(batches::tokens_of(to.view(), 0, token, tokens - token),
                      batches::tokens_of(from.view(), 0, token, tokens - token));
      };
      change(changed.q, other.q);
      change(changed.k, other.k);
      change(changed.v, other.v);
      CHECK(bitwise_equal(batches::tokens_of(call::forward(variant, changed).view(), 0, 0, token),
                          batches::tokens_of(y.view(), 0, 0, token)));

      // Of kv head 1, which query heads 2 and 3 read.
      for (const float value : {not_a_number, infinity})
        for (const auto tensor :
             {&Operands<BFloat16>::q, &Operands<BFloat16>::k, &Operands<BFloat16>::v}) {
          const bool in_query = tensor == &Operands<BFloat16>::q;
          CAPTURE(value, in_query, tensor == &Operands<BFloat16>::k);
          Operands<BFloat16> poisoned = x;
          fill_token(poisoned.*tensor, in_query ? 2 : 1, token, value);
          const auto after = call::forward(variant, poisoned);
          for (Index h = 0; h < 4; ++h) {
            const bool reads = in_query ? h == 2 : h / 2 == 1;
            CHECK(has_rows(after, y, h, 0, reads ? token : tokens));
            if (in_query) CHECK(has_rows(after, y, h, token + 1, tokens));
          }
          if (value != value && (in_query || tensor == &Operands<BFloat16>::v))
            CHECK(std::isnan(mhla::load(after(0, 2, token, 0))));
        }
    }
    // Nor is the matrix read above its diagonal.
    if (mhla::is_structured<std::decay_t<decltype(attention)>>) return;
    Operands<BFloat16> poisoned = x;
    for (Index i = 0; i < x.mix.extent(1); ++i)
      for (Index b = i + 1; b < x.mix.extent(2); ++b) poisoned.mix(0, i, b) = not_a_number;
    CHECK(bitwise_equal(call::forward(variant, poisoned).view(), y.view()));
  };
  check_past(Past{.blocks = {.block = 30}}, 34);
  check_past(Past{.blocks = {.block = 4}}, 33);
  check_past(Past{.blocks = {.block = 85}}, 33);
  check_past(Tokens{.blocks = {.block = 30}}, 34);
  check_past(Rowwise{.blocks = {.block = 30}}, 17);
  check_past(Recurrent{.blocks = {.block = 5}, .mixing = {.states = 2}}, 33);
}

// Of a gradient, too: dq_t is of keys up to t, dk_j and dv_j are of queries from j on. A value that
// outweighs all others leaves dk, dv and dmix to the exact pass, and not dq.
TEST_CASE("precision: gradients are those of what a query sees, whatever the rest holds",
          "[cpu][figures]") {
  const auto check_past = [](const auto& attention) {
    constexpr Index tokens = 213;
    const auto variant = fast(attention);
    const Operands<BFloat16> x = operands(attention, {1, 2, 1, tokens, tokens, 34, 33});
    const auto before = call::backward(variant, x);
    for (const Index token : {1, 2, 8, 11, 30, 31, 65, 212}) {
      CAPTURE(token);
      for (const float value : {1e3f, 3e38f, not_a_number, infinity}) {
        Operands<BFloat16> poisoned = x;
        fill_token(poisoned.v, 0, token, value);
        Gradients<BFloat16> after = call::backward(variant, poisoned);
        for (const Index h : {0, 1}) CHECK(has_rows(after.query, before.query, h, 0, token));
        poisoned = x;
        fill_token(poisoned.k, 0, token, value);
        after = call::backward(variant, poisoned);
        for (const Index h : {0, 1}) CHECK(has_rows(after.query, before.query, h, 0, token));
        poisoned = x;
        fill_token(poisoned.dy, 1, token, value);
        after = call::backward(variant, poisoned);
        CHECK(has_rows(after.query, before.query, 0, 0, tokens));
        CHECK(has_rows(after.query, before.query, 1, 0, token));
        CHECK(has_rows(after.query, before.query, 1, token + 1, tokens));
        CHECK(has_rows(after.key, before.key, 0, token + 1, tokens));
        CHECK(has_rows(after.value, before.value, 0, token + 1, tokens));
      }
    }
  };
  check_past(Past{.blocks = {.block = 30}});
  check_past(Past{.blocks = {.block = 4}});
  check_past(Past{.blocks = {.block = 70}});
  check_past(Tokens{.blocks = {.block = 30}});
  check_past(Rowwise{.blocks = {.block = 30}});
}

namespace {

// Values whose mean changes along the tokens, by a multiple of their spread.
struct Course {
  const char* name;
  float (*at)(Index token, Index tokens, Index block, Index column);
};
constexpr Course courses[] = {
    {"a mean for each block",
     [](Index, Index, Index block, Index column) {
       return static_cast<float>((block * 37 + column * 53) % 64) / 18.0f - 1.75f;  // spread 1
     }},
    {"a ramp around 0",
     [](Index token, Index tokens, Index, Index) {
       return 2 * static_cast<float>(token) / static_cast<float>(tokens - 1) - 1;
     }},
    {"a step",
     [](Index token, Index tokens, Index, Index) { return token < tokens / 3 ? 0.0f : 1.0f; }},
    {"the last token",
     [](Index token, Index tokens, Index, Index column) {
       return token + 1 < tokens ? 0.0f : column % 2 == 0 ? 100.0f : -60.0f;
     }},
};

}  // namespace

// A mean of v that changes along the tokens does not increase errors: the part of v that cancels in
// v_j - y_t is taken out before rounding; nothing is rounded where the mix is so local that queries
// have different means, or where values cancel in y. Nor do weights that lose as much each.
TEST_CASE("precision: results stay close to the oracle however v's mean changes",
          "[cpu][figures]") {
  constexpr Index tokens = 120;
  // A mix of all blocks alike, of fewer with the distance, of the block itself, or of all blocks
  // with one of two weights for each row.
  const auto [block, mixing] =
      GENERATE(table<Index, int>({{1, 0}, {1, 1}, {3, 3}, {3, 2}, {15, 1}, {15, 2}}));
  const Plain attention{.blocks = {.block = block}};
  const Index heads = mixing == 0 ? 4 : 2;
  Operands<BFloat16> plain =
      call::operands<BFloat16>(attention, {1, heads, 1, tokens, tokens, 40, 48, heads});
  const Index blocks = tokens / block;
  for (Index h = 0; h < heads; ++h)
    for (Index i = 0; i < blocks; ++i)
      for (Index b = 0; b < blocks; ++b) {
        const float of_all[] = {1 / 53.0f, 1 / 121.0f};  // rounded, 3e-3 more and less
        const float alike = of_all[(h == 0) != (mixing == 3 && i % 5 < 2) ? 0 : 1];
        const float near = 1 - static_cast<float>(std::abs(i - b)) / static_cast<float>(blocks);
        plain.mix(h, i, b) = mixing % 3 == 0 ? alike : mixing == 1 ? near : i == b ? 1.0f : 0.0f;
      }
  if (mixing == 3) {  // summaries so large that a triangle is mixed in several strips
    const Past past{.blocks = {.block = 4}};
    Operands<BFloat16> large = call::operands<BFloat16>(past, {1, 1, 1, tokens, tokens, 128, 256});
    for (Index i = 0; i < large.mix.extent(1); ++i)
      for (Index b = 0; b <= i; ++b) large.mix(0, i, b) = plain.mix(0, i, b);
    check_forward(past, large);
  }
  for (const Course& course : courses)
    for (const float size : {1.0f, 100.0f}) {
      CAPTURE(block, mixing, course.name, size);
      Operands<BFloat16> x = plain;
      for (Index t = 0; t < tokens; ++t)
        for (Index c = 0; c < x.v.extent(3); ++c)
          mhla::store(x.v(0, 0, t, c),
                      mhla::load(x.v(0, 0, t, c)) + size * course.at(t, tokens, t / block, c));
      check_forward(attention, x);
      check_backward(attention, x);
      check_forward(SumsAlone{.blocks = {.block = block}}, x);
      check_backward(SumsAlone{.blocks = {.block = block}}, x);
    }
}

TEST_CASE("precision: exact is the default, and rounds what float has once", "[cpu]") {
  const auto check_exact = [](const auto& attention, const Shape& shape) {
    const Operands<BFloat16> x = operands(attention, shape);
    const Operands<float> wide = call::converted<float>(x);
    auto exact = linear(attention);
    CHECK(exact.precision == Precision::exact);
    const auto y = call::forward(exact, x);
    CHECK(bitwise_equal(y.view(),
                        mhla::testing::converted<BFloat16>(call::forward(exact, wide)).view()));
    Gradients<BFloat16> gradients = call::backward(exact, x);
    const Gradients<float> full = call::backward(exact, wide);
    CHECK(bitwise_equal(gradients.mix.view(), full.mix.view()));
    CHECK(bitwise_equal(gradients.query.view(),
                        mhla::testing::converted<BFloat16>(full.query).view()));

    // Where there are products of pairs, they are used, and seen.
    const bool other = !bitwise_equal(call::forward(fast(attention), x).view(), y.view());
    CHECK(other == mhla::cpu::has_pair_products());
    Gradients<BFloat16> of_fast = call::backward(fast(attention), x);
    CHECK(!bitwise_equal(of_fast.query.view(), gradients.query.view()) ==
          mhla::cpu::has_pair_products());

    // Other tensors have none.
    CHECK(bitwise_equal(call::forward(fast(attention), wide).view(),
                        call::forward(exact, wide).view()));
    Gradients<float> fast_float = call::backward(fast(attention), wide);
    Gradients<float> exact_float = call::backward(exact, wide);
    call::check_same_bits(fast_float, exact_float);
  };
  check_exact(Plain{.blocks = {.block = 7}}, {1, 4, 2, 60, 60, 34, 33, 4});
  check_exact(Past{.blocks = {.block = 7}}, {1, 4, 2, 60, 60, 34, 33});
  const auto check_ignored = [](const auto& x) {
    const Plain attention{.blocks = {.block = 7}};
    CHECK(bitwise_equal(call::forward(fast(attention), x).view(),
                        call::forward(linear(attention), x).view()));
  };
  const Plain attention{.blocks = {.block = 7}};
  check_ignored(operands<mhla::Half>(attention, {1, 4, 2, 60, 60, 34, 33}));
  check_ignored(operands<double>(attention, {1, 4, 2, 60, 60, 34, 33}));
}

TEST_CASE("precision: the stand-in is used everywhere, else the machine decides, and it is told",
          "[cpu]") {
#if defined(MHLA_PAIR_PRODUCTS_STAND_IN)
  const char* const chosen = std::getenv("MHLA_STAND_IN");
  const std::string told =
      std::string("by a stand-in for ") + (chosen == nullptr ? "VDPBF16PS" : chosen);
  CHECK(mhla::cpu::has_pair_products());
  bool is_chosen = false;
  mhla::cpu::with_pair_kernels<float>(
      [&](auto kernels) { is_chosen = &mhla::cpu::pair_functions<float>() == &kernels.functions; });
  CHECK(is_chosen);
#else
  std::string told = "in float";
#if defined(__x86_64__)
  if (mhla::cpu::has_vdpbf16ps() && __builtin_cpu_is("amd")) told = "by VDPBF16PS";
  if (mhla::cpu::has_tdpbf16ps()) told = "by TDPBF16PS";
#elif defined(__aarch64__)
  if (mhla::cpu::has_bfmmla()) told = "by BFMMLA";
#endif
  CHECK(mhla::cpu::has_pair_products() == (told != "in float"));
  if (!mhla::cpu::has_pair_products())
    WARN("products of bfloat16 are no faster here: Precision::fast was exact in this program");
#endif
  CHECK_THAT(mhla::cpu::describe(), Catch::EndsWith("; bfloat16 " + told));
}
