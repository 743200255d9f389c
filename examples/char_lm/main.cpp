// SPDX-License-Identifier: MIT
// char_lm [options] [TEXT [VALIDATION_TEXT]]: a causal character model trained from nothing with
// this library, compared with what a model without attention can do, and set to write.
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../drawing/csv.hpp"
#include "../drawing/loss_curve.hpp"
#include "corpus.hpp"
#include "generation.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "training.hpp"

namespace {

using namespace char_lm;

enum Status { trained = 0, disagrees = 1, bad_command_line = 2, bad_text = 3 };

// What decoding and the forward pass may differ by in float: each is within 1e-6 of the exact
// attention, and the layers above pass differences on.
constexpr double tolerance = 1e-4;

/// Returns the loss of every step.
std::vector<double> train(Trainer<float>& trainer, const Options& options) {
  Progress progress(name_of(trainer.model().shape().mixing), options.steps,
                    trainer.characters_per_step());
  std::vector<double> losses;
  for (Index step = 0; step < options.steps; ++step) {
    losses.push_back(trainer.step());
    progress.done(losses.back());
  }
  return losses;
}

void report_loss(const char* what, double nats) {
  std::printf("  %-66s %6.3f %6.3f\n", what, nats, nats / std::log(2.0));
}

void report_order(double loss, const char* what, double other) {
  std::printf("%s %s: %.3f against %.3f nats.\n",
              loss < other ? "The validation loss is below" : "The validation loss is NOT below",
              what, loss, other);
}

/// As it came, but for what could upset a terminal.
std::string printable(std::string text) {
  for (char& c : text)
    if (std::iscntrl(static_cast<unsigned char>(c)) != 0 && c != '\n' && c != '\t') c = '?';
  return text;
}

/// Returns whether decoding agrees with the forward pass.
bool report_writing(const Options& options, const Trainer<float>& trainer,
                    const Vocabulary& vocabulary, const std::string& validation_text) {
  constexpr Index usual_prompt = 48;
  const Index context = trainer.model().shape().context;
  const Index prompt_size = std::min({usual_prompt, std::max(Index{1}, context / 4),
                                      context - std::max(Index{0}, options.generate)});
  const std::string prompt = !options.prompt.empty()
                                 ? options.prompt
                                 : validation_text.substr(0, static_cast<std::size_t>(prompt_size));
  const Index characters =
      options.generate < 0 ? context - static_cast<Index>(prompt.size()) : options.generate;
  Stream<float> stream(trainer.model(), trainer.values());
  stream.append(vocabulary.encode(prompt));
  write(stream, characters, options.temperature, options.seed);
  const std::string text = vocabulary.decode(stream.tokens());
  std::printf("\nIt goes on from the %zu characters before the mark:\n\n%s|>%s\n\n", prompt.size(),
              printable(text.substr(0, prompt.size())).c_str(),
              printable(text.substr(prompt.size())).c_str());
  if (!stream.has_decoders()) {
    std::printf("Written by forward passes: a decoder exists for mhla and linear only.\n");
    return true;
  }
  const double difference = disagreement(stream, trainer.model(), trainer.values());
  const bool agrees = difference <= tolerance;
  std::printf(
      "Written through the decoder, a character at a time. Decoding and the forward pass over the\n"
      "%zu characters %s: their logits differ by %.1e (RMS, relative; at most %.0e).\n",
      stream.tokens().size(), agrees ? "agree" : "DISAGREE", difference, tolerance);
  return agrees;
}

/// The four kinds of mixing, trained alike: one table and, if asked for, one picture.
void compare(const Options& options, ModelShape shape, const std::vector<int>& training,
             const std::vector<int>& validation, const Eigen::ThreadPoolDevice& pool) {
  struct Result {
    double nats;
    Index parameters;
    double seconds;
  };
  std::vector<Result> results;
  drawing::LineChart chart{.title = "Training loss of the same model with four kinds of attention",
                           .x = {.label = "step"},
                           .y = {.label = "nats per character; at the right: validation loss"}};
  const std::vector<Mixing> mixings{Mixing::none, Mixing::linear, Mixing::softmax, Mixing::mhla};
  for (const Mixing mixing : mixings) {
    shape.mixing = mixing;
    Trainer<float> trainer(shape, options, training, pool);
    const auto begun = std::chrono::steady_clock::now();
    const std::vector<double> losses = train(trainer, options);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    results.push_back(
        {trainer.loss_on(validation), trainer.model().parameters().size(), took.count()});
    chart.series.push_back(drawing::loss_curve(
        name_of(mixing) + (" " + drawing::fixed_point(results.back().nats, 2)), losses));
  }
  std::printf("\nOn the validation text, per character:\n\n  %-10s %6s %6s %11s %9s\n", "attention",
              "nats", "bits", "parameters", "seconds");
  for (std::size_t i = 0; i < mixings.size(); ++i)
    std::printf("  %-10s %6.3f %6.3f %11td %9.0f\n", name_of(mixings[i]), results[i].nats,
                results[i].nats / std::log(2.0), results[i].parameters, results[i].seconds);
  std::printf("  %-10s %6.3f\n\n", "(bigrams)",
              bigram_conditional_entropy(validation, shape.vocabulary));
  try {
    if (!options.svg.empty()) drawing::write_svg(options.svg, chart);
    if (!options.csv.empty()) drawing::write_csv(options.csv, chart);
  } catch (const std::runtime_error& problem) {
    throw UsageError(problem.what());
  }
}

Status run(const Options& options) {
  if (options.list) {
    const ProjectFiles files(MHLA_SOURCE_DIR);
    for (const std::string& name : files.training) std::printf("training    %s\n", name.c_str());
    for (const std::string& name : files.validation) std::printf("validation  %s\n", name.c_str());
    return trained;
  }
  const Corpus corpus = Corpus::read(MHLA_SOURCE_DIR, options.files, options.context);
  const Vocabulary vocabulary(corpus.training_text);
  const std::vector<int> training = vocabulary.encode(corpus.training_text);
  const std::vector<int> validation = vocabulary.encode(corpus.validation_text);
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  Eigen::ThreadPool thread_pool(threads);
  const Eigen::ThreadPoolDevice pool(&thread_pool, threads);

  ModelShape shape{.mixing = options.mixing,
                   .vocabulary = vocabulary.size(),
                   .context = options.context,
                   .block = options.block,
                   .layers = options.layers,
                   .width = options.width,
                   .heads = options.heads};
  std::printf(
      "Text: %s.\n"
      "%zu characters to train on, %s%zu to validate on, %td symbols (one for bytes that the "
      "training "
      "text lacks).\n"
      "Model: %s, %td layers of width %td, %td heads, context %td",
      corpus.description.c_str(), training.size(), corpus.validation_is_cut ? "the first " : "",
      validation.size(), vocabulary.size(),
      options.compare ? "each of four" : name_of(options.mixing), options.layers, options.width,
      options.heads, options.context);
  if (options.compare || options.mixing == Mixing::mhla)
    std::printf(" in blocks of %td", options.block);
  std::printf("; %d thread%s.\n\n", threads, threads == 1 ? "" : "s");
  std::fflush(stdout);
  if (options.compare) {
    compare(options, shape, training, validation, pool);
    return trained;
  }

  Trainer<float> trainer(shape, options, training, pool);
  train(trainer, options);
  const double loss = trainer.loss_on(validation);
  const double bigram = bigram_conditional_entropy(validation, vocabulary.size());
  double loss_without = loss;
  if (options.mixing != Mixing::none) {
    shape.mixing = Mixing::none;
    Trainer<float> without(shape, options, training, pool);
    train(without, options);
    loss_without = without.loss_on(validation);
  }

  const std::string name = name_of(options.mixing);
  std::printf("\n  %-66s %6s %6s\n", "On the validation text, per character", "nats", "bits");
  report_loss(("loss of --attention " + name).c_str(), loss);
  if (options.mixing != Mixing::none)
    report_loss("loss of --attention none: as many steps, the same text", loss_without);
  report_loss("bigram conditional entropy H(next | current) of that very text", bigram);
  std::printf(
      "The last is what no model of the current character alone can go below, even one that had "
      "counted\nthe pairs of the validation text itself.\n\n");
  report_order(loss, "the bigram conditional entropy", bigram);
  if (options.mixing != Mixing::none)
    report_order(loss, "that of the same model without attention", loss_without);
  return report_writing(options, trainer, vocabulary, corpus.validation_text) ? trained : disagrees;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse_options({argv + 1, argv + argc});
    if (!options.help) return run(options);
    std::fputs(usage.data(), stdout);
    return trained;
  } catch (const UsageError& problem) {
    std::fprintf(stderr, "char_lm: %s\n\n%s", problem.what(), usage.data());
    return bad_command_line;
  } catch (const TextError& problem) {
    std::fprintf(stderr, "char_lm: %s\n", problem.what());
    return bad_text;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "char_lm: %s\n", problem.what());
    return disagrees;
  }
}
