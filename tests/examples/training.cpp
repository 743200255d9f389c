// SPDX-License-Identifier: MIT
// What the training programs share: the gradient of every form of the transformer, the softmax
// attention that MHLA is compared with, and the command line.
#include <cmath>
#include <iterator>
#include <memory>
#include <mhla/policy/variant.hpp>
#include <mhla/reference/mhla.hpp>
#include <mhla/reference/softmax_attention.hpp>
#include <mhla/testing/comparison.hpp>
#include <string>
#include <vector>

#include "examples/layers/mhla_attention.hpp"
#include "examples/train_recall/recall.hpp"
#include "examples/training/attention_of.hpp"
#include "examples/training/command_line.hpp"
#include "examples/training/softmax_attention.hpp"
#include "examples/training/token_prediction.hpp"
#include "examples/training/transformer.hpp"
#include "tests/examples/gradients.hpp"
#include "tests/support/tolerances.hpp"

namespace {

using namespace training;
using namespace test;
using mhla::testing::HostTensor;

// Exp is smooth: a central difference of fourth order can judge it.
using Sequence = mhla::Attention<mhla::Exp, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                                 mhla::HalfSplitRotary>;
using Recurrent = mhla::Attention<mhla::Exp, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                                  mhla::NoRotation, mhla::RecurrentMixing>;
using Image = mhla::Attention<mhla::Exp, mhla::Blocks2D>;
using Separable = mhla::Attention<mhla::Exp, mhla::Blocks2D, mhla::Bidirectional, mhla::MixedKeySum,
                                  mhla::NoRotation, mhla::SeparableMixing>;
using Video = mhla::Attention<mhla::Exp, mhla::Blocks3D, mhla::Bidirectional, mhla::MixedKeySum,
                              mhla::AxialRotary>;

const Sequence sequence{.blocks = {.block = 4}, .rotation = {.theta = 50}};
const Recurrent recurrent{.blocks = {.block = 3}, .mixing = {.states = 2}};
const Image image{.blocks = {.grid = {3, 4}, .block = {2, 2}}};
const Separable separable{.blocks = image.blocks, .mixing = {.rank = 2}};
const Video video{.blocks = {.grid = {2, 2, 3}, .block = {1, 2, 2}}, .rotation = {.theta = 50}};

/// In x and in all parameters at once; a linear model's mix stays as it is.
void require_transformer(const TransformerShape& shape) {
  ParameterList list;
  const Transformer transformer(list, shape);
  Values origin = list.initial_values<double>(3);
  transformer.initialize(origin);
  origin += 0.1 * random_matrix(list.size(), 1, 4).col(0).array();
  transformer.project(origin);
  // No token of it is near 0 after attention, where a norm is too curved for differences.
  Matrix x = random_matrix(2 * shape.tokens, shape.width, 15);
  const Matrix weight = random_matrix(x.rows(), x.cols(), 6);

  TransformerActivations a;
  Matrix dx;
  // What is not written shows as NaN.
  Values gradient = Values::Constant(list.size(), std::nan(""));
  transformer.forward(origin, 2, x, a);
  transformer.backward(origin, 2, a, weight, dx, gradient);
  REQUIRE(gradient.isFinite().all());

  Values scale = Values::Constant(list.size(), 0.02);
  for (const Parameter& parameter : list.all())
    if (shape.mixing == Mixing::linear && parameter.name.ends_with(".mix"))
      scale.segment(parameter.begin, parameter.size()) = 0;
  const auto loss = [&](const Values& displaced) {
    transformer.forward(displaced, 2, x, a);
    return (a.normed.array() * weight.array()).sum();
  };
  INFO(name_of(shape.mixing) << ", gate " << shape.gate << ", convolution "
                             << shape.positional_convolution);
  require_gradient(1e-9, origin, scale, gradient, loss, with(x, dx));
}

void require_transformers(const std::shared_ptr<const AnyAttention>& attention, Index tokens,
                          const std::vector<Mixing>& mixings = {std::begin(all_mixings),
                                                                std::end(all_mixings)}) {
  for (const Mixing mixing : mixings)
    for (const bool gate : {false, true})
      require_transformer({.mixing = mixing,
                           .attention = attention,
                           .tokens = tokens,
                           .layers = 2,
                           .width = 8,
                           .heads = 2,
                           .gate = gate,
                           .positional_convolution = !gate,
                           .softmax_layers = mixing == Mixing::mhla && gate ? 1 : 0});
}

/// Against the oracle, which knows of no rotation.
template <class Attention>
void require_softmax(const Attention& attention, Index tokens) {
  const auto random = [&](std::uint64_t seed, Index dim) {
    return mhla::testing::random_tensor<double>(mhla::testing::Normal{}, seed, 2, 3, tokens, dim);
  };
  HostTensor<double, 4> q = random(1, 6), k = random(2, 6), dq = q, dk = k;
  HostTensor<double, 4> v = random(3, 4), dy = random(4, 4), y = v, dv = v;
  const AttentionOf<Attention> any(attention);
  softmax_forward(any, q.view(), k.view(), v.view(), y.view());
  softmax_backward(any, q.view(), k.view(), v.view(), dy.view(), dq.view(), dk.view(), dv.view());

  const auto turn = [&](HostTensor<double, 4>& x, int direction) {
    const auto view = x.view();
    for (Index b = 0; b < 2; ++b)
      for (Index h = 0; h < 3; ++h)
        for (Index t = 0; t < tokens; ++t)
          mhla::reference::rotate(attention.rotation, attention.blocks.grid_of(tokens),
                                  Attention::GeometryType::rank, t, direction,
                                  mhla::Span<double>{&view(b, h, t, 0), 6});
  };
  const mhla::reference::SoftmaxAttention<typename Attention::CausalityType> oracle;
  HostTensor<double, 4> exact_y = v, exact_dq = q, exact_dk = k, exact_dv = v;
  turn(q, +1);
  turn(k, +1);
  mhla::reference::softmax_attention_forward(oracle, q.view(), k.view(), v.view(), exact_y.view());
  mhla::reference::softmax_attention_backward(
      oracle, q.view(), k.view(), v.view(), dy.view(),
      {exact_dq.view(), exact_dk.view(), exact_dv.view(), mhla::skip});
  turn(exact_dq, -1);
  turn(exact_dk, -1);
  const auto error = [](const auto& actual, const auto& exact) {
    return mhla::testing::compare(actual.view(), exact.view()).rms_ratio;
  };
  CHECK(error(y, exact_y) <= tolerance::forward_rms<double>);
  CHECK(error(dq, exact_dq) <= tolerance::gradient_rms<double>);
  CHECK(error(dk, exact_dk) <= tolerance::gradient_rms<double>);
  CHECK(error(dv, exact_dv) <= tolerance::gradient_rms<double>);
}

}  // namespace

TEST_CASE("training: the transformer's gradients", "[training]") {
  require_transformers(any_attention(sequence), 10);
  require_transformers(any_attention(image), 12, {Mixing::mhla, Mixing::softmax});
  require_transformers(any_attention(video), 12, {Mixing::mhla, Mixing::softmax});
  require_transformers(any_attention(recurrent), 10, {Mixing::mhla});
  require_transformers(any_attention(separable), 12, {Mixing::mhla});
}

TEST_CASE("training: the gradient of predicted tokens", "[training]") {
  const train_recall::Recall sequences(train_recall::Writing::again, 10, 3, 5);
  const TokenPrediction task(
      {.attention = any_attention(sequence), .tokens = 10, .layers = 1, .width = 8, .heads = 2},
      sequences);
  const Values origin = task.initial_values(3);
  const auto scratch = task.scratch();
  Values gradient = Values::Constant(origin.size(), std::nan(""));
  const Score score = task.score(origin, Part::training, 0, 2, *scratch, 0.1, &gradient);
  CHECK(score.predictions == 10);
  const auto loss = [&](const Values& displaced) {
    return task.score(displaced, Part::training, 0, 2, *scratch, 0, nullptr).loss / 10;
  };
  require_gradient(1e-9, origin, 0.02, gradient, loss);
}

TEST_CASE("training: the softmax attention that MHLA is compared with is right", "[training]") {
  require_softmax(sequence, 9);
  require_softmax(video, 12);
}

TEST_CASE("training: a command line", "[training]") {
  Index number = 3;
  std::string file;
  bool flag = false;
  std::vector<std::string> others;
  CommandLine line("usage: program\n");
  line.number("--number", number, Index{1}, Index{9}, "how many");
  line.text("--a-file-of-a-name", "FILE", file, "where");
  line.flag("--flag", flag, "whether");
  line.others(others, 1, "texts");
  CHECK(line.usage() ==
        "usage: program\n"
        "  --number N         how many (3)\n"
        "  --a-file-of-a-name FILE\n"
        "                     where\n"
        "  --flag             whether\n");
  line.parse({"--number", "7", "text", "--flag", "--a-file-of-a-name", "--flag"});
  CHECK(number == 7);
  CHECK(file == "--flag");
  CHECK(flag);
  CHECK(others == std::vector<std::string>{"text"});
  for (const char* number_text : {"0", "10", "2x", ""})  // char_lm refuses what else is wrong
    CHECK_THROWS_AS(line.parse({"--number", number_text}), UsageError);
  CHECK_THROWS_AS(line.parse({"one more"}), UsageError);
}
