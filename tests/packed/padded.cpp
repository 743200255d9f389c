// SPDX-License-Identifier: MIT
// A padded batch: what a mask takes away takes part in nothing, whatever it holds, and has output
// and gradient 0. Padding at the end gives the bits of the run without it, any other mask what the
// oracle says.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mhla/packed.hpp>
#include <string>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/packed/cut.hpp"
#include "tests/packed/requests.hpp"
#include "tests/packed/units.hpp"
#include "tests/support/error_message.hpp"

namespace {

using batches::cut;
using batches::tokens_of;
using namespace call;
using call::Gradients;
using namespace mhla;

// phi(0) is 1 and 1 / key_dim: a zeroed key would count.
template <class Causality, class Geometry = Blocks1D>
using Normalized = Attention<EluPlusOne, Geometry, Causality, MixedKeySum, AxialRotary>;
using Rowwise = Attention<Softmax, Blocks1D, Causal, Unnormalized, HalfSplitRotary>;

// Where a query sees few keys, gradients of normalized sums nearly cancel, and those of one key are
// nothing but epsilon: against the oracle it is as large as the sums.
constexpr MixedKeySum normalizer{.epsilon = 10};

using Mask = HostTensor<std::uint8_t, 2>;  // [batch, tokens]

Mask mask_of(const std::vector<std::string>& rows) {
  Mask mask(static_cast<Index>(rows.size()), static_cast<Index>(rows.at(0).size()));
  for (std::size_t n = 0; n < rows.size(); ++n)
    for (std::size_t t = 0; t < rows[n].size(); ++t)
      mask(static_cast<Index>(n), static_cast<Index>(t)) = rows[n][t] == '1' ? 1 : 0;
  return mask;
}
// The first lengths[n] tokens of item n.
Mask mask_of(const std::vector<Index>& lengths, Index tokens) {
  Mask mask(static_cast<Index>(lengths.size()), tokens);
  for (std::size_t n = 0; n < lengths.size(); ++n)
    for (Index t = 0; t < lengths[n]; ++t) mask(static_cast<Index>(n), t) = 1;
  return mask;
}

// Calls f(element) for the rows of a tensor that the mask takes away, or leaves.
template <class T, class F>
void for_each_row(HostTensor<T, 4>& tensor, const Mask& mask, bool taken_away, F&& f) {
  for (Index n = 0; n < tensor.extent(0); ++n)
    for (Index h = 0; h < tensor.extent(1); ++h)
      for (Index t = 0; t < tensor.extent(2); ++t)
        for (Index c = 0; c < tensor.extent(3); ++c)
          if ((mask(n, t) == 0) == taken_away) f(tensor(n, h, t, c));
}
template <class T>
Index count_other_than_zero(HostTensor<T, 4>& tensor, const Mask& mask) {
  Index count = 0;
  for_each_row(tensor, mask, true, [&](const T& element) { count += !(element == T(0)); });
  return count;
}

// NaN wherever the masks take something away.
Operands<double> poisoned(Operands<double> x, const Mask& queries, const Mask& keys) {
  const auto poison = [](double& element) { element = std::numeric_limits<double>::quiet_NaN(); };
  for_each_row(x.q, queries, true, poison);
  for_each_row(x.dy, queries, true, poison);
  for_each_row(x.k, keys, true, poison);
  for_each_row(x.v, keys, true, poison);
  return x;
}

template <class V>
auto padded(const V& attention, const Mask& mask) {
  return mhla::padded(attention, mask.view());
}

// What holds for every mask. `masked` is attention with the masks.
template <class V, class P>
void check_masks(const V& attention, const P& masked, const Mask& queries, const Mask& keys,
                 const Operands<double>& clean) {
  const Operands<double> x = poisoned(clean, queries, keys);
  HostTensor<double, 4> y = forward(masked, x);
  Gradients<double> gradients = backward(masked, x);

  // What is masked takes part in nothing and gets nothing.
  CHECK(bitwise_equal(y.view(), forward(masked, clean).view()));
  Gradients<double> of_clean = backward(masked, clean);
  call::check_same_bits(gradients, of_clean);
  CHECK(count_other_than_zero(y, queries) == 0);
  CHECK(count_other_than_zero(gradients.query, queries) == 0);
  CHECK(count_other_than_zero(gradients.key, keys) == 0);
  CHECK(count_other_than_zero(gradients.value, keys) == 0);

  // The oracle.
  const auto wide = call::converted<long double>(clean);
  HostTensor<long double, 4> exact_y = wide.dy;
  mhla::reference::mhla_forward(attention, wide.q, wide.k, wide.v, wide.mix, exact_y.view(),
                                masked.masks);
  Gradients<long double> exact(wide);
  mhla::reference::mhla_backward(attention, wide.q.view(), wide.k, wide.v, wide.mix, wide.dy,
                                 exact.views(), Update::overwrite, masked.masks);
  call::check_close("y", y, exact_y, tolerance::forward_rms<double>,
                    tolerance::forward_max<double>);
  call::check_close(gradients, exact);

  // Accumulated gradients are left alone where the masks are.
  Gradients<double> sums(clean), expected(clean);
  backward_to(sums.views(), Update::accumulate, masked, x);
  const auto add = [](auto& to, auto& from, const auto& mask) {
    auto term = from.elements().begin();
    std::vector<double*> left;
    for_each_row(to, mask, false, [&](double& element) { left.push_back(&element); });
    for (double& element : to.elements()) {
      if (std::binary_search(left.begin(), left.end(), &element)) element += *term;
      ++term;
    }
  };
  add(expected.query, gradients.query, queries);
  add(expected.key, gradients.key, keys);
  add(expected.value, gradients.value, keys);
  for (std::size_t i = 0; i < expected.mix.elements().size(); ++i)
    expected.mix.elements()[i] += gradients.mix.elements()[i];
  call::check_same_bits(sums, expected);
}

// Items of the first lengths[n] tokens: each as if it were alone and of that length.
template <class V>
void check_trailing(const V& attention, const std::vector<Index>& lengths,
                    const Operands<double>& clean) {
  CAPTURE(lengths, clean.mix.extent(0), attention.blocks.block);
  const Mask mask = mask_of(lengths, clean.q.extent(2));
  const auto masked = padded(attention, mask);
  check_masks(attention, masked, mask, mask, clean);

  const auto y = forward(masked, clean);
  const auto gradients = backward(masked, clean);
  HostTensor<double, 3> grad_mix = HostTensor<double, 3>::like(clean.mix.view());
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    const auto item = static_cast<Index>(n);
    CAPTURE(item);
    const Operands<double> alone = cut(clean, item, 0, lengths[n]);
    const auto same = [&](const auto& all, const auto& one) {
      CHECK(bitwise_equal(tokens_of(all.view(), item, 0, lengths[n]), one.view()));
    };
    const Gradients<double> one = backward(attention, alone);
    same(y, forward(attention, alone));
    same(gradients.query, one.query);
    same(gradients.key, one.key);
    same(gradients.value, one.value);
    for (std::size_t i = 0; i < grad_mix.elements().size(); ++i)
      grad_mix.elements()[i] += one.mix.elements()[i];
  }
  if (lengths.size() == 1) CHECK(bitwise_equal(gradients.mix.view(), grad_mix.view()));
  call::check_close("dmix", gradients.mix, grad_mix, tolerance::gradient_rms<double>,
                    tolerance::gradient_max<double>);
}

template <class V>
void check_trailing(V attention) {
  attention.blocks.block = 4;
  attention.mixing.leading_corner = true;  // without its padding a sequence has fewer blocks
  for (const Index mix_heads : {1, 4}) {
    for (Index length = 0; length <= 14; length += backend::runs_all_cases ? 1 : 7)
      check_trailing(attention, {length},
                     operands<double>(attention, {1, 4, 2, 14, 14, 4, 3, mix_heads}));
    check_trailing(attention, {9, 0, 14, 1, 4},
                   operands<double>(attention, {5, 4, 2, 14, 14, 4, 3, mix_heads}));
  }
  attention.blocks.block = 150;  // longer than a tile
  check_trailing(attention, {151, 130, 3}, operands<double>(attention, {3, 2, 1, 170, 170, 2, 3}));
}

// Blocks of 4: holes, a whole block, the first, the last, all, nothing.
const std::vector<std::string> holes = {"10110111011010", "11110000111101", "00001111111111",
                                        "11111111110000", "00000000000000", "11111111111111",
                                        "01000000000010", "00000000000001"};

template <class V>
void check_holes(V attention) {
  attention.blocks.block = 4;
  const Mask mask = mask_of(holes);
  for (const Index mix_heads : {1, 4}) {
    CAPTURE(mix_heads);
    check_masks(attention, padded(attention, mask), mask, mask,
                operands<double>(attention, {8, 4, 2, 14, 14, 4, 3, mix_heads}));
  }
  // Holes in blocks longer than a tile.
  attention.blocks.block = 150;
  Mask large(2, 320);
  for (Index n = 0; n < large.size(); ++n)
    large.elements()[static_cast<std::size_t>(n)] =
        mhla::testing::random_index(3, static_cast<std::uint64_t>(n), 3) != 0 ? 1 : 0;
  check_masks(attention, padded(attention, large), large, large,
              operands<double>(attention, {2, 2, 1, 320, 320, 2, 3}));
}

// Bits are the same by either path, but not whichever is shorter.
Path any_path() { return GENERATE(Path::linear, Path::quadratic); }

}  // namespace

TEST_CASE("padded: padding at the end has the bits of the run without it", "[packed]") {
  check_trailing(Normalized<Bidirectional>{.normalizer = normalizer, .path = any_path()});
}
TEST_CASE("padded: padding at the end, causal", "[packed]") {
  check_trailing(Normalized<Causal>{.normalizer = normalizer, .path = any_path()});
}
TEST_CASE("padded: padding at the end, block-causal", "[packed]") {
  check_trailing(Normalized<BlockCausal>{.normalizer = normalizer, .path = any_path()});
}
TEST_CASE("padded: padding at the end, whole rows without a normalizer", "[packed]") {
  check_trailing(Rowwise{.scale = 0.5, .path = any_path()});
}

TEST_CASE("padded: holes", "[packed]") {
  check_holes(Normalized<Bidirectional>{.normalizer = normalizer, .path = any_path()});
}
TEST_CASE("padded: holes, causal", "[packed]") {
  check_holes(Normalized<Causal>{.normalizer = normalizer, .path = any_path()});
}
TEST_CASE("padded: holes, block-causal", "[packed]") {
  check_holes(Normalized<BlockCausal>{.normalizer = normalizer, .path = any_path()});
}
TEST_CASE("padded: holes, whole rows without a normalizer", "[packed]") {
  check_holes(Rowwise{.scale = 0.5, .path = any_path()});
}

TEST_CASE("padded: images", "[packed]") {
  const Path path = any_path();
  const Normalized<Bidirectional, Blocks2D> attention{
      .blocks = {.grid = {5, 6}, .block = {2, 4}}, .normalizer = normalizer, .path = path};
  const auto x = operands<double>(attention, {3, 4, 2, 30, 30, 4, 3, 4});
  Mask mask(3, 30);
  for (Index t = 0; t < 30; ++t) {
    mask(0, t) = t < 24 ? 1 : 0;               // its last row, a row of blocks
    mask(1, t) = t % 6 < 4 && t != 8 ? 1 : 0;  // right-hand blocks, and a hole
    mask(2, t) =
        t / 6 >= 2 && t / 6 < 4 && t % 3 == 1 ? 1 : 0;  // all blocks but those of rows 2, 3
  }
  const auto masked = padded(attention, mask);
  check_masks(attention, masked, mask, mask, x);

  // Whole rows of blocks at the end: a smaller image, with the leading corner of mix.
  const Normalized<Bidirectional, Blocks2D> smaller{
      .blocks = {.grid = {4, 6}, .block = {2, 4}}, .normalizer = normalizer, .path = path};
  Operands<double> alone = cut(x, 0, 0, 24);
  alone.mix = HostTensor<double, 3>(4, 4, 4);
  for (Index h = 0; h < 4; ++h)
    for (Index i = 0; i < 4; ++i)
      for (Index b = 0; b < 4; ++b) alone.mix(h, i, b) = x.mix(h, i, b);
  const auto one = backward(smaller, alone);
  const auto all = backward(masked, x);
  CHECK(bitwise_equal(tokens_of(forward(masked, x).view(), 0, 0, 24),
                      forward(smaller, alone).view()));
  CHECK(bitwise_equal(tokens_of(all.query.view(), 0, 0, 24), one.query.view()));
  CHECK(bitwise_equal(tokens_of(all.key.view(), 0, 0, 24), one.key.view()));
  CHECK(bitwise_equal(tokens_of(all.value.view(), 0, 0, 24), one.value.view()));
}

TEST_CASE("padded: cross-attention has a mask for each side", "[packed]") {
  const Normalized<Bidirectional> attention{
      .blocks = {.block = 4}, .key_blocks = {.block = 3}, .normalizer = normalizer};
  const auto x = operands<double>(attention, {3, 4, 2, 9, 11, 4, 3, 4});
  const Mask queries = mask_of({"110111001", "000000000", "111110000"});
  const Mask keys = mask_of({"01110001111", "11100000000", "00000000000"});
  check_masks(attention, mhla::padded(attention, queries.view(), keys.view()), queries, keys, x);

  // One side only: a mask without data takes every token.
  const Mask every_query(3, 9), every_key(3, 11);
  auto all_queries = every_query, all_keys = every_key;
  for (std::uint8_t& taken : all_queries.elements()) taken = 1;
  for (std::uint8_t& taken : all_keys.elements()) taken = 1;
  const TensorView<const std::uint8_t, 2> none;
  check_masks(attention, mhla::padded(attention, none, keys.view()), all_queries, keys, x);
  check_masks(attention, mhla::padded(attention, queries.view(), none), queries, all_keys, x);
  const auto unmasked = mhla::padded(attention, none, none);
  check_masks(attention, unmasked, all_queries, all_keys, x);
  CHECK(bitwise_equal(forward(unmasked, x).view(), forward(attention, x).view()));
}

TEST_CASE("padded: masks of bool and of bytes, with any strides", "[packed]") {
  const Normalized<Causal> attention{.blocks = {.block = 4}};
  const auto x = operands<double>(attention, {3, 2, 1, 14, 14, 4, 3});
  const Mask mask = mask_of({"10110111011010", "11110000111101", "00001111111111"});
  const auto y = forward(padded(attention, mask), x);
  auto gradients = backward(padded(attention, mask), x);
  const auto same = [&](const auto& view) {
    const auto masked = mhla::padded(attention, view);
    CHECK(bitwise_equal(forward(masked, x).view(), y.view()));
    auto again = backward(masked, x);
    call::check_same_bits(again, gradients);
  };
  // Any byte but 0 takes a token; a mask is not const for a caller who made it.
  Mask bytes = mask;
  for (std::uint8_t& taken : bytes.elements()) taken = taken != 0 ? 0x80 : 0;
  same(bytes.view());

  const auto flags = std::make_unique<bool[]>(3 * 14);
  for (std::size_t i = 0; i < 3 * 14; ++i) flags[i] = mask.elements()[i] != 0;
  same(mhla::make_view(flags.get(), 3, 14));
  same(TensorView<const bool, 2>(mhla::make_view(flags.get(), 3, 14)));

  // Tokens outermost and backwards, with a gap.
  std::vector<std::uint8_t> memory(14 * 3 * 2, 1);
  const TensorView<std::uint8_t, 2> scattered{memory.data() + 13 * 6, {3, 14}, {2, -6}};
  for (Index n = 0; n < 3; ++n)
    for (Index t = 0; t < 14; ++t) scattered(n, t) = mask(n, t);
  same(scattered);
  const auto scattered_flags = std::make_unique<bool[]>(14 * 3 * 2);
  const TensorView<bool, 2> backwards{scattered_flags.get() + 13 * 6, {3, 14}, {2, -6}};
  for (Index n = 0; n < 3; ++n)
    for (Index t = 0; t < 14; ++t) backwards(n, t) = mask(n, t) != 0;
  same(backwards);

  // One row for all items.
  const Mask row = mask_of({"10110111011010"});
  const Mask rows = mask_of({"10110111011010", "10110111011010", "10110111011010"});
  CHECK(bitwise_equal(
      forward(mhla::padded(attention,
                           TensorView<const std::uint8_t, 2>{row.view().data, {3, 14}, {0, 1}}),
              x)
          .view(),
      forward(padded(attention, rows), x).view()));
}

TEMPLATE_TEST_CASE("padded: what is asked for, from saved summaries, on any executor", "[packed]",
                   Bidirectional, Causal, BlockCausal) {
  const Normalized<TestType> attention{.blocks = {.block = 4}};
  const Mask mask = mask_of(holes);
  const auto masked = padded(attention, mask);
  const auto x =
      poisoned(operands<double>(attention, {8, 4, 2, 14, 14, 4, 3, GENERATE(Index{1}, Index{4})}),
               mask, mask);
  batches::check_requests(masked, x);
}

TEST_CASE("padded: says what is wrong with a mask, and writes nothing", "[packed]") {
  const Normalized<Bidirectional> attention{.blocks = {.block = 4}};
  const auto x = operands<double>(attention, {2, 2, 1, 9, 9, 4, 3});
  const Mask good = mask_of({9, 5}, 9);
  const auto expected = forward(padded(attention, good), x);
  const backend::Device device = backend::device();
  const mhla::Workspace workspace(
      mhla::backward_workspace_size<double>(padded(attention, good), x.shape(), device));
  const auto refuse = [&](const auto& variant, const auto&... parts) {
    auto y = x.dy;
    Gradients<double> gradients(x), before(x);
    const std::string by_forward = error_message<ShapeError>(
        [&] { forward_into(variant, device, x.q, x.k, x.v, x.mix, y.view(), workspace); });
    const std::string by_backward = error_message<ShapeError>([&] {
      backward_into(variant, device, x.q.view(), x.k, x.v, x.mix, x.dy, gradients.views(),
                    Update::overwrite, workspace);
    });
    const std::string by_size = error_message<ShapeError>(
        [&] { mhla::forward_workspace_size<double>(variant, x.shape(), device); });
    INFO(by_forward);
    CHECK(says(by_forward, "mhla: ", parts...));
    CHECK(by_backward == by_forward);
    CHECK(by_size == by_forward);
    CHECK(bitwise_equal(y.view(), x.dy.view()));
    call::check_same_bits(gradients, before);
    CHECK(bitwise_equal(forward(padded(attention, good), x).view(), expected.view()));
  };
  const Mask one_item = mask_of(std::vector<Index>{9}, 9), ten_tokens = mask_of({9, 5}, 10);
  const TensorView<const std::uint8_t, 2> none;
  refuse(padded(attention, one_item), "masks.query: axis batch is 1 but must be 2",
         "a mask is [batch, tokens]");
  refuse(padded(attention, ten_tokens), "masks.query: axis tokens is 10 but must be 9");
  refuse(mhla::padded(attention, none, one_item.view()),
         "masks.key: axis batch is 1 but must be 2");
  refuse(mhla::padded(attention, good.view(), ten_tokens.view()),
         "masks.key: axis tokens is 10 but must be 9");
  const Mask other = good;
  const char* one_mask = "queries and keys need one mask";
  refuse(mhla::padded(Normalized<Causal>{.blocks = {.block = 4}}, good.view(), other.view()),
         one_mask);
  refuse(mhla::padded(Normalized<BlockCausal>{.blocks = {.block = 4}}, none, good.view()),
         one_mask);
  auto one_row = good.view();
  one_row.stride[0] = 0;
  refuse(mhla::padded(Normalized<Causal>{.blocks = {.block = 4}}, good.view(), one_row), one_mask);
}
