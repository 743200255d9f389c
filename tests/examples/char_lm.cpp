// SPDX-License-Identifier: MIT
// char_lm: its model's gradient against central differences, its parts against what they stand for,
// and the program as its user runs it.
#include <algorithm>
#include <cmath>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <vector>

#include "examples/char_lm/corpus.hpp"
#include "examples/char_lm/generation.hpp"
#include "examples/char_lm/model.hpp"
#include "examples/char_lm/options.hpp"
#include "examples/char_lm/windows.hpp"
#include "tests/examples/gradients.hpp"
#include "tests/examples/run_program.hpp"
#include "tests/support/tolerances.hpp"

namespace {

using namespace test;
using namespace char_lm;
using namespace training;
using layers::AdamW;
using layers::clip;
using layers::Parameter;
using layers::scheduled_rate;
using mhla::testing::random_index;

// Exp is smooth, where the program's EluPlusOne has a second derivative that jumps: a central
// difference of fourth order cannot judge that.
Model smooth_model(const ModelShape& shape) { return Model(shape, mhla::Exp{}); }

/// Blocks of 4 in a context of 14: the last one is shorter.
ModelShape small_shape(Mixing mixing) {
  return {.mixing = mixing,
          .vocabulary = 5,
          .context = 14,
          .block = 4,
          .layers = 2,
          .width = 8,
          .heads = 2};
}

/// Initial values that are nowhere special: gains are not 1, mixing rows not uniform.
Values some_values(const Model& model) {
  Values values = model.initial_values(3);
  Values noise(values.size());
  mhla::testing::fill_random(mhla::testing::Uniform{-0.2f, 0.2f}, 4, view(noise));
  values += noise;
  const Parameter& head = model.parameters().all().back();  // its first values are small
  values.segment(head.begin, head.size()) *= 10;
  return values;
}

bool is_mix(const Parameter& parameter) { return parameter.name.ends_with(".mix"); }

std::vector<int> some_text(std::size_t length) {
  std::vector<int> text(length);
  for (std::size_t t = 0; t < length; ++t) text[t] = static_cast<int>(random_index(5, t, 5));
  return text;
}

/// Windows of 14 over a text, which is both trained on and validated.
Windows small_windows(const std::vector<int>& text, std::uint64_t seed = 1) {
  return Windows(smooth_model(small_shape(Mixing::mhla)), text, text, seed);
}

/// The loss of a batch, and its gradient.
double loss_and_gradient(const Model& model, const Values& values, const Batch& batch,
                         double weight, Values& gradient) {
  Activations activations;
  Matrix d_logits;
  model.forward(values, batch.tokens, batch.sequences, activations);
  const double loss = cross_entropy(activations.logits, batch.predictions, weight, &d_logits);
  model.backward(values, batch.tokens, batch.sequences, activations, d_logits, gradient);
  return loss;
}

const Program program{MHLA_CHAR_LM};

}  // namespace

TEST_CASE("char_lm: the gradient of every parameter is the loss' derivative", "[char_lm]") {
  for (const Mixing mixing : all_mixings) {
    const Model model = smooth_model(small_shape(mixing));
    const Values origin = some_values(model);
    const std::vector<int> text = some_text(40);
    const Batch batch = batch_of(model.shape(), text, {0, 11, 25}, model.shape().context);
    CHECK(batch.tokens.size() == (mixing == Mixing::none ? 5 : 3 * 14));  // each symbol once
    const double weight = 1.0 / static_cast<double>(batch.predictions.size());

    Values gradient;
    loss_and_gradient(model, origin, batch, weight, gradient);

    // A linear model's mix stays as it is, so that its derivative does not count.
    Values scale =
        Values::Constant(origin.size(), std::sqrt(1.0 / static_cast<double>(origin.size())));
    for (const Parameter& parameter : model.parameters().all()) {
      const auto part = gradient.segment(parameter.begin, parameter.size());
      const bool stays = is_mix(parameter) && mixing != Mixing::mhla;
      CHECK((part != 0).any() == !stays);
      if (stays) scale.segment(parameter.begin, parameter.size()) = 0;
    }
    const auto loss = [&](const Values& displaced) {
      Activations activations;
      model.forward(displaced, batch.tokens, batch.sequences, activations);
      return weight * cross_entropy(activations.logits, batch.predictions);
    };
    INFO(name_of(mixing));
    require_gradient(tolerance::gradient_check, origin, scale, gradient, loss);
  }
}

TEST_CASE("char_lm: no character knows those after it, and a stream computes the same",
          "[char_lm]") {
  for (const Mixing mixing : all_mixings) {
    INFO(name_of(mixing));
    const Model model = smooth_model(small_shape(mixing));
    const Values values = some_values(model);
    const std::vector<int> tokens = some_text(14);
    for (const std::ptrdiff_t prompt : {1, 4, 5, 14}) {
      INFO("after a prompt of " << prompt);
      Stream stream(model, values);
      CHECK(stream.has_decoders() == (mixing == Mixing::mhla || mixing == Mixing::linear));
      stream.append({tokens.begin(), tokens.begin() + prompt});
      for (auto token = tokens.begin() + prompt; token != tokens.end(); ++token)
        stream.append({*token});
      CHECK(stream.tokens() == tokens);
      // Six layers pass on what attention may differ by.
      CHECK(disagreement(stream, model, values) <= 6 * tolerance::forward_rms<double>);
    }
    const Index changed = 6;
    std::vector<int> others = tokens;
    others[changed] = (others[changed] + 1) % 5;
    Activations before, after;
    model.forward(values, tokens, 1, before);
    model.forward(values, others, 1, after);
    for (Index t = 0; t < 14; ++t) {
      INFO("token " << t);
      const bool same = before.logits.row(t) == after.logits.row(t);
      CHECK(same == (t < changed || (mixing == Mixing::none && t > changed)));
    }
  }
}

TEST_CASE("char_lm: training has the same bits for any number of threads, and a mix that may be",
          "[char_lm]") {
  const std::vector<int> text = some_text(200);
  const Windows windows = small_windows(text);
  Values initial, values[3];
  double loss[3];
  for (const int i : {0, 1, 2}) {
    const mhla::ForkJoin threads(i + 1);
    // 11: not a multiple of the shares
    Trainer trainer(windows, {.steps = 4, .batch = 11, .rate = 0.5}, threads);
    initial = trainer.values();
    for (Index step = 0; step < 4; ++step) trainer.step();
    values[i] = trainer.values();
    loss[i] = trainer.validate().loss;
    CHECK(values[i].isFinite().all());
    CHECK((values[0] == values[i]).all());
    CHECK(loss[0] == loss[i]);
  }
  int matrices = 0;
  for (const Parameter& parameter : windows.parameters().all()) {
    if (!is_mix(parameter)) continue;
    ++matrices;
    const Matrix mix = parameter.in(values[0]);
    CHECK(mix != Matrix(parameter.in(initial)));
    for (Index j = 0; j < mix.size(); ++j) {  // of heads, rows and columns
      const double entry = mix.data()[j];
      CHECK((j % 4 > j / 4 % 4 ? entry == 0 : entry >= 1e-5 && entry <= 1));
    }
  }
  CHECK(matrices == 2);
}

TEST_CASE("char_lm: Adam, its rate, and clipping", "[char_lm]") {
  Values values(3), gradient(3);
  values << 1, 2, 3;
  gradient << 0.3, -4, 0;
  Values decaying = values;
  AdamW<double>(3, 0.5).update(decaying, Values::Zero(3), 0.1);
  CHECK((decaying - values * 0.95).abs().maxCoeff() <= 1e-15);
  AdamW<double> adam(3);
  adam.update(values, gradient, 0.1);  // the first update is the rate along each sign
  CHECK(std::abs(values(0) - 0.9) <= 1e-8);
  CHECK(std::abs(values(1) - 2.1) <= 1e-8);
  CHECK(values(2) == 3);
  adam.update(values, Values::Zero(3), 0.1);
  const double mean = 0.9 * 0.1 / (1 - 0.81);
  const double square = 0.98 * 0.02 / (1 - 0.98 * 0.98);
  CHECK(std::abs(values(0) - (0.9 - 0.1 * mean / std::sqrt(square))) <= 1e-8);

  CHECK(scheduled_rate(1, 0, 100) < scheduled_rate(1, 3, 100));
  CHECK(scheduled_rate(1, 4, 100) == 1);
  CHECK(scheduled_rate(1, 60, 100) < scheduled_rate(1, 40, 100));
  CHECK(scheduled_rate(1, 99, 100) == 0.02);

  gradient << 3, 0, 4;
  CHECK(clip(gradient, 6.0) == 5);
  CHECK(gradient(2) == 4);
  CHECK(clip(gradient, 1.0) == 5);
  CHECK(std::abs(gradient.matrix().norm() - 1) <= tolerance::policy_value<double>);
}

TEST_CASE("char_lm: a short training of each kind, and --compare, one table and one picture",
          "[char_lm]") {
  const TemporaryFolder temporary;
  const std::string small =
      " --steps 40 --batch 2 --context 48 --block 16 --width 16 --heads 2 --rate 0.02 "
      "--prompt '#include' '" MHLA_SOURCE_DIR "/README.md'";
  const std::string all = program.check("--compare --svg" + quoted(temporary / "losses.svg") +
                                            "--csv" + quoted(temporary / "losses.csv") + small,
                                        0);
  const std::string table = all.substr(all.find("\n  attention "));
  const std::string picture = text_of(temporary / "losses.svg");
  const auto losses = [](const std::string& of_model) {
    std::vector<double> of_steps;
    for (const char* step : {"16", "20", "24", "28", "32", "36", "40"})
      of_steps.push_back(figure_after(of_model, std::string("step ") + step + "/40  loss"));
    return of_steps;
  };
  std::vector<double> dense;
  for (const Mixing mixing : all_mixings) {
    const bool decodes = mixing == Mixing::mhla || mixing == Mixing::linear;
    const bool none = mixing == Mixing::none;
    const std::string name = name_of(mixing);
    const std::string alone = program.check("--attention " + name + small, 0, {"\n#include|>"});
    if (mixing == Mixing::mhla) dense = losses(alone);
    INFO(alone);
    CHECK(figure_after(alone, "step 40/40  loss") < figure_after(alone, "step  1/40  loss") - 1);
    CHECK(says(alone, "48 characters agree: their logits differ by") == decodes);
    CHECK(says(alone, "Written by forward passes") == !decodes);
    CHECK(figure_after(alone, none ? "loss of --attention none" : "as many steps, the same text") >
          figure_after(alone, "H(next | current) of that very text"));
    CHECK(says(alone, "that of the same model without attention") == !none);
    CHECK_FALSE(says(alone, MHLA_SOURCE_DIR));
    const double loss = figure_after(table, "\n  " + name + " ");
    CHECK(loss == figure_after(alone, "loss of --attention " + name));
    CHECK(std::abs(figure_after(picture, ">" + name + " ") - loss) < 0.006);
    CHECK(says(text_of(temporary / "losses.csv"), "\n" + name + ",40,"));
  }
  program.check("--compare --svg /nowhere/losses.svg" + small, 1);

  const std::string both = program.check("--compare --mixing recurrent --states 1" + small, 0);
  const std::string mixings = both.substr(both.find("\n  attention "));
  const double recurrent = figure_after(mixings, "\n  recurrent ");
  const std::string alone = program.check("--mixing recurrent --states 1" + small, 0,
                                          {"48 characters agree: their logits differ by"});
  CHECK(figure_after(mixings, "\n  dense ") == figure_after(table, "\n  MHLA "));
  CHECK(recurrent == figure_after(alone, "loss of --attention MHLA"));
  CHECK(losses(alone) != dense);
  CHECK_FALSE(says(both, "softmax"));
}

#ifndef MHLA_SMALL_PRODUCT  // seconds of training: nothing for Debug and sanitizers
#endif
