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

TEST_CASE("char_lm: a step follows the gradient of all its windows", "[char_lm]") {
  const std::vector<int> text = some_text(200);
  const Schedule schedule{.steps = 10, .batch = 11, .seed = 6};
  const Windows windows = small_windows(text, schedule.seed);
  const Model& model = windows.model();
  const mhla::ForkJoin threads(2);
  Trainer trainer(windows, schedule, threads);
  Values values = trainer.values();
  const double loss = trainer.step();

  std::vector<Index> starts;
  for (std::uint64_t i = 0; i < 11; ++i)
    starts.push_back(random_index(mhla::testing::random_bits(schedule.seed, 0), i, 200 - 14));
  const Batch batch = batch_of(model.shape(), text, starts, 14);
  Values gradient;
  const double summed = loss_and_gradient(model, values, batch, 1.0 / (11 * 14), gradient);
  clip(gradient, 1.0);
  AdamW<double>(values.size()).update(values, gradient, scheduled_rate(schedule.rate, 0, 10));
  model.project(values);
  CHECK(std::abs(loss - summed / (11 * 14)) <= tolerance::forward_rms<double> * loss);
  const double change = (trainer.values() - values).matrix().norm() / values.matrix().norm();
  CHECK(change <= tolerance::gradient_rms<double>);
}

TEST_CASE("char_lm: every character of a text but the first is predicted once", "[char_lm]") {
  const mhla::ForkJoin threads(1);
  const std::vector<int> text = some_text(500);
  for (const Mixing mixing : {Mixing::mhla, Mixing::none})
    for (const std::ptrdiff_t length : {2, 15, 16, 500}) {
      const std::vector<int> part(text.begin(), text.begin() + length);
      const Windows windows(smooth_model(small_shape(mixing)), text, part, 1);
      Trainer trainer(windows, {}, threads);
      double nats = 0;
      for (std::ptrdiff_t begin = 0; begin + 1 < length; begin += 14) {
        const std::ptrdiff_t end = std::min(begin + 14, length - 1);
        Activations activations;
        windows.model().forward(trainer.values(), {part.begin() + begin, part.begin() + end}, 1,
                                activations);
        for (std::ptrdiff_t t = begin; t < end; ++t) {
          const auto row = activations.logits.row(t - begin).array();
          nats += std::log(row.exp().sum()) - row(part[static_cast<std::size_t>(t) + 1]);
        }
      }
      const training::Score score = trainer.validate();
      CHECK(score.predictions == length - 1);
      CHECK(std::abs(score.loss - nats) <= tolerance::forward_rms<double> * nats);
    }
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

TEST_CASE("char_lm: symbols, and the entropy of pairs", "[char_lm]") {
  const Vocabulary vocabulary("banana\n");
  CHECK(vocabulary.size() == 5);
  CHECK(vocabulary.decode(vocabulary.encode("a ban\n")) == "a?ban\n");
  CHECK(vocabulary.symbol('\xff') == 0);

  // a is followed by b or by c, as often; b and c by a alone.
  const Vocabulary abc("abc");
  CHECK(std::abs(bigram_conditional_entropy(abc.encode("abacabaca"), abc.size()) -
                 std::log(2.0) / 2) <= tolerance::policy_value<double>);
  CHECK(bigram_conditional_entropy(abc.encode("abcabc"), abc.size()) == 0);
}

TEST_CASE("char_lm: a drawn symbol follows its probability", "[char_lm]") {
  Matrix logits(1, 4);
  logits << 9, std::log(0.2), std::log(0.3), std::log(0.5);  // the unknown symbol is never drawn
  const struct {
    double temperature, drawn;
    int symbol;
  } draws[] = {{0, 0.1, 3},  {1, 0.0, 1},  {1, 0.19, 1},      {1, 0.21, 2},
               {1, 0.49, 2}, {1, 0.51, 3}, {1, 0.9999999, 3}, {0.01, 0.01, 3}};
  for (const auto& [temperature, drawn, symbol] : draws)
    CHECK(draw_symbol(logits.row(0), temperature, drawn) == symbol);
}

TEST_CASE("char_lm: where the text comes from", "[char_lm]") {
  const TemporaryFolder temporary;
  const std::string text(95, 'x');
  write_text(temporary / "one", text + "12345");
  write_text(temporary / "two", "abcdefghi");
  const std::string one = (temporary / "one").string(), two = (temporary / "two").string();
  const Corpus split = Corpus::read("", {one}, 8);
  CHECK(split.training_text == std::string(90, 'x'));
  CHECK(split.validation_text == "xxxxx12345");
  const Corpus both = Corpus::read("", {one, two}, 8);
  CHECK(both.training_text == text + "12345");
  CHECK(both.validation_text == "abcdefghi");
  CHECK_FALSE(says(both.description, (temporary / "").string()));
  CHECK_THROWS_AS(Corpus::read("", {one, two}, 9), InputError);
  CHECK_THROWS_AS(Corpus::read(temporary / "", {}, 8), InputError);

  const ProjectFiles own(MHLA_SOURCE_DIR);
  CHECK(own.training.size() / own.validation.size() == 9);
  for (const std::string& name : own.validation) {
    CHECK(std::find(own.training.begin(), own.training.end(), name) == own.training.end());
    CHECK(fs::is_regular_file(fs::path(MHLA_SOURCE_DIR) / name));
  }
  const Corpus project = Corpus::read(MHLA_SOURCE_DIR, {}, 256);
  CHECK(project.validation_text.size() == Corpus::longest_validation);
  CHECK(project.training_text.size() > project.validation_text.size());
  CHECK_FALSE(says(project.description, MHLA_SOURCE_DIR));
}

TEST_CASE("char_lm: a command line that cannot be followed, a text that cannot be used",
          "[char_lm]") {
  for (const char* arguments :
       {"--attention magic", "--steps 0", "--steps 3x", "--width 20 --heads 4", "--rate nan",
        "--steps", "--fast", "a b c", "--svg losses.svg", "--csv losses.csv", "--generate 256",
        "--softmax-layers 3", "--context 8 --prompt 123456789"})
    program.check(arguments, 2, {"char_lm: ", "usage: char_lm"});
  const TemporaryFolder temporary;
  write_text(temporary / "empty", "");
  write_text(temporary / "short", "too short");
  for (const char* name : {"nowhere", "empty", "short", ""})
    program.check(quoted(temporary / name), 3, {(temporary / name).string()});
  program.check("--help", 0, {"usage: char_lm"});
  CHECK_FALSE(says(program.check("--list", 0, {"\nvalidation  ", "README.md\n"}), MHLA_SOURCE_DIR));
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
  for (const Mixing mixing : all_mixings) {
    const bool decodes = mixing == Mixing::mhla || mixing == Mixing::linear;
    const bool none = mixing == Mixing::none;
    const std::string name = name_of(mixing);
    const std::string alone = program.check("--attention " + name + small, 0, {"\n#include|>"});
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
  CHECK(recurrent != figure_after(mixings, "\n  dense "));
  CHECK_FALSE(says(both, "softmax"));
}

#ifndef MHLA_SMALL_PRODUCT  // seconds of training: nothing for Debug and sanitizers
TEST_CASE("char_lm: trained on the project's sources, it learns more than pairs", "[char_lm]") {
  const std::string run =
      program.check("--steps 200 --batch 4 --context 128 --block 16 --width 64", 0,
                    {"The validation loss is below the bigram conditional entropy",
                     "The validation loss is below that of the same model without attention",
                     "128 characters agree: their logits differ by"});
  CHECK(figure_after(run, "loss of --attention MHLA") <
        figure_after(run, "H(next | current) of that very text") - 0.1);
}
#endif
