// SPDX-License-Identifier: MIT
// What the causal modes add to the CPU backend, and packed and padded batches: against the oracle;
// decoding against the forward pass.
#include <mhla/decoding.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <vector>

#include "cpu_call.hpp"

namespace {

using killer::Call;
using killer::check;
using killer::expect;
using killer::expect_close;
using mhla::Blocks1D;
using mhla::Index;
using mhla::MixedKeySum;
using mhla::Shape;
using mhla::Update;
using mhla::testing::HostTensor;
using Serial = mhla::SerialExecutor;

// Rotated, so that positions count.
template <class Mode, class Normalizer>
using Variant =
    mhla::Attention<mhla::EluPlusOne, Blocks1D, Mode, Normalizer, mhla::HalfSplitRotary>;

template <class Mode, class Normalizer>
void check_mode(const std::string& name) {
  Variant<Mode, Normalizer> attention{.blocks = {.block = 5}, .scale = 0.7};
  check(name + ", ragged, grouped heads, a matrix per head", attention,
        Shape{2, 6, 3, 23, 23, 4, 7, 6, 5, 5});
  attention.blocks.block = 150;
  check(name + ", blocks of several tiles, a larger matrix", attention,
        Shape{1, 2, 1, 310, 310, 6, 3, 1, 4, 5});
  attention.blocks.block = 2;
  check(name + ", more blocks than are mixed at once", attention,
        Shape{1, 1, 1, 75, 75, 4, 5, 1, 38, 38});
}

// ---- Packed and padded batches ----------------------------------------------------------------

/// Tokens [begin, end) of every head.
mhla::TensorView<double, 4> tokens_of(mhla::TensorView<double, 4> view, Index begin, Index end) {
  view.data += begin * view.stride[2];
  view.extent[2] = end - begin;
  return view;
}

template <class Mode>
void check_packed(const std::string& name) {
  const Variant<Mode, MixedKeySum> attention{.blocks = {.block = 4}};
  const std::vector<std::int64_t> offsets{0, 9, 9, 12, 29};
  const mhla::Packed<Variant<Mode, MixedKeySum>, std::int64_t> packed(
      attention, {offsets.data(), static_cast<Index>(offsets.size())});
  const Shape shape{1, 4, 2, 29, 29, 6, 3, 4, 5, 7};
  Call oracle(shape), call(shape);
  forward(packed, Serial{}, shape, call);
  backward(packed, Serial{}, shape, call, Update::overwrite, call.gradients());
  oracle.fill_gradients(0);
  for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
    const auto part = [&](mhla::TensorView<double, 4> x) {
      return tokens_of(x, offsets[s], offsets[s + 1]);
    };
    mhla::reference::mhla_forward(attention, part(oracle.q.view()), part(oracle.k.view()),
                                  part(oracle.v.view()), oracle.mix.view(), part(oracle.y.view()));
    mhla::reference::mhla_backward(attention, part(oracle.q.view()), part(oracle.k.view()),
                                   part(oracle.v.view()), oracle.mix.view(), part(oracle.dy.view()),
                                   {part(oracle.dq.view()), part(oracle.dk.view()),
                                    part(oracle.dv.view()), oracle.dmix.view()},
                                   Update::accumulate);
  }
  expect_close(call.y.view(), oracle.y.view(), name + ", packed: y");
  expect_close(call, oracle, name + ", packed");
}

template <class Mode>
void check_padded(const std::string& name, Index key_tokens) {
  const bool cross = key_tokens != 14;
  Variant<Mode, MixedKeySum> attention{.blocks = {.block = 4}};
  if (cross) attention.key_blocks.block = 3;
  const Shape shape{2, 4, 2, 14, key_tokens, 6, 3, 1, 5, 7};
  // Holes, an empty block, a padded end.
  const HostTensor<std::uint8_t, 2> queries = [] {
    HostTensor<std::uint8_t, 2> mask(2, 14);
    for (Index n = 0; n < 2; ++n)
      for (Index t = 0; t < 14; ++t) mask(n, t) = n == 0 ? t % 3 != 1 && t / 4 != 1 : t < 9;
    return mask;
  }();
  HostTensor<std::uint8_t, 2> keys(2, key_tokens);
  for (Index n = 0; n < 2; ++n)
    for (Index t = 0; t < key_tokens; ++t) keys(n, t) = t % 5 != n;
  const mhla::TokenMasks masks{queries.view(), cross ? keys.view() : queries.view()};
  const mhla::Padded<Variant<Mode, MixedKeySum>> padded(attention, masks);
  Call oracle(shape);
  mhla::reference::mhla_forward(attention, oracle.q.view(), oracle.k.view(), oracle.v.view(),
                                oracle.mix.view(), oracle.y.view(), masks);
  mhla::reference::mhla_backward(attention, oracle.q.view(), oracle.k.view(), oracle.v.view(),
                                 oracle.mix.view(), oracle.dy.view(), oracle.gradients(),
                                 Update::overwrite, masks);
  for (const Index step : {2, 1}) {
    Call call(shape, step);
    forward(padded, Serial{}, shape, call);
    call.fill_gradients(7);
    backward(padded, Serial{}, shape, call, Update::overwrite, call.gradients());
    expect_close(call.y.view(), oracle.y.view(), name + ", padded: y");
    expect_close(call, oracle, name + ", padded");
  }
}

// ---- Decoding ---------------------------------------------------------------------------------

template <class Normalizer>
void check_decoding(const std::string& name) {
  using V = Variant<mhla::Causal, Normalizer>;
  const V attention{.blocks = {.block = 4}, .scale = 0.7};
  const Index tokens = 23;
  const Shape shape{2, 4, 2, tokens, tokens, 6, 5, 4, 6, 6};
  Call oracle(shape), call(shape);
  mhla::reference::mhla_forward(attention, oracle.q.view(), oracle.k.view(), oracle.v.view(),
                                oracle.mix.view(), oracle.y.view());
  for (const Index prefill : {0, 3, 4, 9, 17}) {
    mhla::Decoder<V, double> decoder(
        attention, call.mix.view(),
        {.batch = 2, .heads = 4, .kv_heads = 2, .key_dim = 6, .value_dim = 5});
    mhla::testing::for_each_element([](double& x) { x = 7; }, call.y.view());
    const auto part = [&](mhla::TensorView<double, 4> x, Index begin, Index end) {
      return tokens_of(x, begin, end);
    };
    const auto advance = [&](Index begin, Index end) {
      decoder.step(part(call.q.view(), begin, end), part(call.k.view(), begin, end),
                   part(call.v.view(), begin, end), part(call.y.view(), begin, end));
    };
    advance(0, prefill);
    std::vector<std::byte> saved(static_cast<std::size_t>(decoder.saved_size()));
    for (Index t = prefill; t < tokens; ++t) {
      advance(t, t + 1);
      if (t != 12) continue;  // a state passes through bytes
      decoder.save({saved.data(), decoder.saved_size()});
      decoder.reset();
      decoder.load({saved.data(), decoder.saved_size()});
    }
    expect_close(call.y.view(), oracle.y.view(),
                 name + ", decoded after " + std::to_string(prefill) + " tokens: y");
    killer::expect_throw<mhla::StateError>(
        [&] {
          advance(0, 1);
          advance(1, 2);
        },
        "a step past the last row of mix");
    saved[saved.size() / 2] ^= std::byte{1};
    killer::expect_throw<mhla::StateError>(
        [&] {
          decoder.load({saved.data(), decoder.saved_size()});
        },
        "a damaged state");
  }
}

void check_extend() {
  HostTensor<double, 2> mix(3, 3);
  HostTensor<double, 2> larger(5, 5);
  for (Index i = 0; i < 3; ++i)
    for (Index b = 0; b < 3; ++b) mix(i, b) = static_cast<double>(10 * i + b);
  const double last_row[5][5] = {{0, 1, 2, 0, 0},
                                 {10, 11, 12, 0, 0},
                                 {20, 21, 22, 0, 0},
                                 {20, 20, 21, 22, 0},
                                 {20, 20, 20, 21, 22}};
  mhla::extend(mix.view(), larger.view(), mhla::Extension::last_row);
  for (Index i = 0; i < 5; ++i)
    for (Index b = 0; b < 5; ++b)
      expect(larger(i, b) == last_row[i][b], "extend by the last row, element by element");
  mhla::extend(mix.view(), larger.view(), mhla::Extension::causal_average);
  for (Index i = 3; i < 5; ++i)
    for (Index b = 0; b < 5; ++b)
      expect(larger(i, b) == (b <= i ? 1 / static_cast<double>(i + 1) : 0),
             "extend by the mean, element by element");
}

}  // namespace

int main() {
  killer::run([] {
    check_mode<mhla::Causal, MixedKeySum>("Causal");
    check_mode<mhla::Causal, mhla::Unnormalized>("Causal, unnormalized");
    check_mode<mhla::BlockCausal, MixedKeySum>("BlockCausal");
    check_packed<mhla::Bidirectional>("Bidirectional");
    check_packed<mhla::Causal>("Causal");
    check_padded<mhla::Bidirectional>("Bidirectional", 14);
    check_padded<mhla::Bidirectional>("Cross-attention", 17);
    check_padded<mhla::Causal>("Causal", 14);
    check_decoding<MixedKeySum>("MixedKeySum");
    check_decoding<mhla::Unnormalized>("Unnormalized");
    check_extend();
  });
}
