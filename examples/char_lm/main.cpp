// SPDX-License-Identifier: MIT
// char_lm [options] [TEXT [VALIDATION_TEXT]]: a causal character model trained from nothing with
// this library, compared with what a model without attention can do, and set to write.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "corpus.hpp"
#include "generation.hpp"
#include "options.hpp"
#include "windows.hpp"

namespace {

using namespace char_lm;

using training::disagrees;
using training::trained;

// What decoding and the forward pass may differ by in float: each is within 1e-6 of the exact
// attention, and the layers above pass differences on.
constexpr double tolerance = 1e-4;

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
bool report_writing(const Options& options, const Model& model, const Values& values,
                    const Vocabulary& vocabulary, const std::string& validation_text) {
  constexpr Index usual_prompt = 48;
  const Index context = model.shape().context;
  const Index prompt_size = std::min({usual_prompt, std::max(Index{1}, context / 4),
                                      context - std::max(Index{0}, options.generate)});
  const std::string prompt = !options.prompt.empty()
                                 ? options.prompt
                                 : validation_text.substr(0, static_cast<std::size_t>(prompt_size));
  const Index characters =
      options.generate < 0 ? context - static_cast<Index>(prompt.size()) : options.generate;
  Stream stream(model, values);
  stream.append(vocabulary.encode(prompt));
  write(stream, characters, options.temperature, options.schedule.seed);
  const std::string text = vocabulary.decode(stream.tokens());
  std::printf("\nIt goes on from the %zu characters before the mark:\n\n%s|>%s\n\n", prompt.size(),
              printable(text.substr(0, prompt.size())).c_str(),
              printable(text.substr(prompt.size())).c_str());
  if (!stream.has_decoders()) {
    std::printf("Written by forward passes: a decoder exists for mhla and linear only.\n");
    return true;
  }
  const double difference = disagreement(stream, model, values);
  const bool agrees = difference <= tolerance;
  std::printf(
      "Written through the decoder, a character at a time. Decoding and the forward pass over the\n"
      "%zu characters %s: their logits differ by %.1e (RMS, relative; at most %.0e).\n",
      stream.tokens().size(), agrees ? "agree" : "DISAGREE", difference, tolerance);
  return agrees;
}

/// All kinds of mixing and a hybrid, or MHLA by both kinds of block mixing, trained alike: one
/// table and, if asked for, one picture.
void compare(const Options& options, ModelShape shape, const std::vector<int>& training_text,
             const std::vector<int>& validation_text, const mhla::ForkJoin& threads) {
  std::vector<training::Result> results;
  const auto train = [&](const std::string& name) {
    const Windows windows(Model(shape), training_text, validation_text, options.schedule.seed);
    results.push_back(training::train(name, windows, options.schedule, options.context, threads));
  };
  const bool all_kinds = options.block_mixing.dense;
  if (!all_kinds) {
    train(options.block_mixing.structured);
    shape.states = 0;
    train("dense");
  } else {
    for (const Mixing mixing : training::all_mixings) {
      shape.mixing = mixing;
      train(name_of(mixing));
    }
    if (shape.layers > 1) {
      shape.softmax_layers = 1;
      train("hybrid");
    }
  }
  training::print_table(results);
  std::printf("\nLosses are nats per character of the validation text; bigrams alone: %.3f.\n",
              bigram_conditional_entropy(validation_text, shape.vocabulary));
  if (all_kinds && shape.layers > 1)
    std::printf("hybrid: MHLA, and softmax attention in the last layer.\n");
  training::write_losses(options, results,
                         "The same character model, trained with several kinds of attention",
                         "nats per character");
}

int run(const Options& options) {
  options.check();
  if (options.list) {
    const ProjectFiles files(MHLA_SOURCE_DIR);
    for (const std::string& name : files.training) std::printf("training    %s\n", name.c_str());
    for (const std::string& name : files.validation) std::printf("validation  %s\n", name.c_str());
    return trained;
  }
  const Corpus corpus = Corpus::read(MHLA_SOURCE_DIR, options.files, options.context);
  const Vocabulary vocabulary(corpus.training_text);
  const std::vector<int> training_text = vocabulary.encode(corpus.training_text);
  const std::vector<int> validation_text = vocabulary.encode(corpus.validation_text);
  const mhla::ForkJoin threads(options.thread_count());

  ModelShape shape{.mixing = options.mixing,
                   .vocabulary = vocabulary.size(),
                   .context = options.context,
                   .block = options.block,
                   .layers = options.layers,
                   .width = options.width,
                   .heads = options.heads,
                   .softmax_layers = options.softmax_layers,
                   .states = options.block_mixing.dense ? 0 : options.block_mixing.size};
  std::printf(
      "Text: %s.\n"
      "%zu characters to train on, %s%zu to validate on, %td symbols (one for bytes that the "
      "training "
      "text lacks).\n"
      "Model: %s, %td layers of width %td, %td heads, context %td",
      corpus.description.c_str(), training_text.size(),
      corpus.validation_is_cut ? "the first " : "", validation_text.size(), vocabulary.size(),
      options.compare ? "several" : name_of(options.mixing), options.layers, options.width,
      options.heads, options.context);
  if (options.compare || options.mixing == Mixing::mhla)
    std::printf(" in blocks of %td", options.block);
  std::printf("; %td thread%s.\n\n", threads.num_slots(), threads.num_slots() == 1 ? "" : "s");
  std::fflush(stdout);
  if (options.compare) {
    compare(options, shape, training_text, validation_text, threads);
    return trained;
  }

  const Windows windows(Model(shape), training_text, validation_text, options.schedule.seed);
  training::Trainer trainer(windows, options.schedule, threads);
  const double loss =
      training::train(name_of(options.mixing), trainer, windows, options.schedule, options.context)
          .validation.mean_loss();
  const double bigram = bigram_conditional_entropy(validation_text, vocabulary.size());
  double loss_without = loss;
  const bool mixes = options.mixing != Mixing::none || options.softmax_layers > 0;
  if (mixes) {
    shape.mixing = Mixing::none;
    shape.softmax_layers = 0;
    const Windows without(Model(shape), training_text, validation_text, options.schedule.seed);
    loss_without = training::train("none", without, options.schedule, options.context, threads)
                       .validation.mean_loss();
  }

  const std::string name = name_of(options.mixing);
  std::printf("\n  %-66s %6s %6s\n", "On the validation text, per character", "nats", "bits");
  report_loss(("loss of --attention " + name).c_str(), loss);
  if (mixes) report_loss("loss of --attention none: as many steps, the same text", loss_without);
  report_loss("bigram conditional entropy H(next | current) of that very text", bigram);
  std::printf(
      "The last is what no model of the current character alone can go below, even one that had "
      "counted\nthe pairs of the validation text itself.\n\n");
  report_order(loss, "the bigram conditional entropy", bigram);
  if (mixes) report_order(loss, "that of the same model without attention", loss_without);
  return report_writing(options, windows.model(), trainer.values(), vocabulary,
                        corpus.validation_text)
             ? trained
             : disagrees;
}

}  // namespace

int main(int argc, char** argv) { return training::run_program("char_lm", about, argc, argv, run); }
