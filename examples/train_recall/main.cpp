// SPDX-License-Identifier: MIT
// train_recall [options]: how much of what was written a causal model still finds in sequences of
// growing length, with several kinds of attention.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/mixing.hpp>
#include <mhla/policy/normalizer.hpp>
#include <mhla/policy/variant.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../drawing/csv.hpp"
#include "../training/attention_of.hpp"
#include "../training/comparison.hpp"
#include "../training/mixing.hpp"
#include "../training/token_prediction.hpp"
#include "recall.hpp"

namespace {

using namespace train_recall;
using training::CommandLine;
using training::Mixing;
using training::UsageError;

// Without a normalizer, because an RMSNorm follows; where a token stands it learns.
template <class BlockMixing>
using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal,
                                  mhla::Unnormalized, mhla::NoRotation, BlockMixing>;

constexpr const char* about =
    R"(usage: train_recall [options]
Trains a small causal model to recall what was written under a key, in sequences of growing length.
Every second token writes one of 16 values under a key, every other asks for a key's value. The same
keys are written again and again, and the latest value is wanted; or, with --once, each key is
written once. Prints one table: none, linear, softmax and MHLA, by length; with --mixing recurrent,
MHLA by a dense matrix and by a recurrence.
Exit status: 0 trained, 1 failed, 2 the command line cannot be followed.

)";

struct Options : training::Options {
  bool once = false;
  Index shortest = 128;
  Index lengths = 4;
  Index keys = 16;
  Index block = 32;
  Index layers = 2;
  Index width = 64;
  Index heads = 2;
  training::BlockMixing block_mixing{.structured = "recurrent", .sizes = "states", .size = 2};

  Options() {
    schedule = {.steps = 600, .batch = 16, .rate = 0.01, .seed = 1};
    drawn = "how much is right, by length";
  }

  void add_to(CommandLine& line) {
    line.flag("--once", once, "writes each key once: as many keys as writes");
    block_mixing.add_to(line, ", and then beside dense alone");
    line.number("--shortest", shortest, Index{2}, Index{1} << 16,
                "tokens of the shortest sequence");
    line.number("--lengths", lengths, Index{1}, Index{10},
                "lengths, each twice the one before, in steps of half as many examples");
    line.number("--keys", keys, Index{1}, Index{1} << 16, "keys, without --once");
    line.number("--block", block, Index{1}, Index{1} << 16, "tokens of an MHLA block");
    line.number("--layers", layers, Index{1}, Index{64}, "attention and MLP layers");
    line.number("--width", width, Index{2}, Index{1} << 13, "features of a token");
    line.number("--heads", heads, Index{1}, Index{1} << 8, "attention heads");
    training::Options::add_to(line);
  }
};

/// What is compared: a kind of mixing, and of MHLA the states of its recurrence, 0 if it is dense.
struct Kind {
  std::string name;
  Mixing mixing = Mixing::mhla;
  Index states = 0;
};
std::vector<Kind> kinds_of(const Options& options) {
  const training::BlockMixing& mixing = options.block_mixing;
  if (!mixing.dense) return {{.name = "dense"}, {.name = mixing.structured, .states = mixing.size}};
  std::vector<Kind> kinds;
  for (const Mixing kind : training::all_mixings)
    kinds.push_back({.name = training::name_of(kind), .mixing = kind});
  return kinds;
}

template <class BlockMixing>
std::shared_ptr<const training::AnyAttention> attention(const Options& options,
                                                        BlockMixing mixing) {
  return training::any_attention(Attention<BlockMixing>{
      .blocks = {.block = options.block},
      .mixing = mixing,
      .scale = 1 / std::sqrt(static_cast<double>(options.width / options.heads))});
}

training::Result train(const Kind& kind, const Recall& recall, const Options& options,
                       const training::Schedule& schedule, const mhla::ForkJoin& threads) {
  const training::TransformerShape shape{
      .mixing = kind.mixing,
      .attention = kind.states == 0 ? attention(options, mhla::DenseMixing{})
                                    : attention(options, mhla::RecurrentMixing{kind.states}),
      .tokens = recall.tokens(),
      .layers = options.layers,
      .width = options.width,
      .heads = options.heads};
  const training::TokenPrediction task(shape, recall);
  return training::train(kind.name, task, schedule, recall.tokens(), threads);
}

/// By length, a line for each kind: how much is right, in per cent.
drawing::LineChart accuracies(const Options& options, const mhla::ForkJoin& threads) {
  drawing::LineChart chart{
      .title = options.once ? "Recall of a value written once" : "Recall of the latest value",
      .x = {.label = "tokens", .scale = drawing::Scale::logarithmic},
      .y = {.label = "right, per cent", .shows_zero = true}};
  const std::vector<Kind> kinds = kinds_of(options);
  for (const Kind& kind : kinds) chart.series.push_back({.name = kind.name});
  for (Index i = 0; i < options.lengths; ++i) {
    const Index tokens = options.shortest << i;
    const Recall recall(options.once ? Writing::once : Writing::again, tokens, options.keys,
                        options.schedule.seed);
    training::Schedule schedule = options.schedule;
    schedule.batch = std::max(Index{1}, schedule.batch >> i);
    std::printf("%td tokens, %td keys:\n", recall.tokens(), recall.keys());
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      const training::Result result = train(kinds[kind], recall, options, schedule, threads);
      chart.series[kind].x.push_back(static_cast<double>(tokens));
      chart.series[kind].y.push_back(100 * result.validation.accuracy());
    }
  }
  return chart;
}

void print_table(const drawing::LineChart& chart) {
  std::printf("\n  right, by tokens");
  for (const double tokens : chart.series[0].x) std::printf(" %9.0f", tokens);
  for (const drawing::Series& kind : chart.series) {
    std::printf("\n  %-16s", kind.name.c_str());
    for (const double right : kind.y) std::printf(" %7.1f %%", right);
  }
  std::printf("\n");
}

int run(const Options& options) {
  if (options.width % options.heads != 0) throw UsageError("--width must be a multiple of --heads");
  if (options.shortest % 2 != 0) throw UsageError("--shortest must be even");
  const mhla::ForkJoin threads(options.thread_count());
  std::printf("%td layers of width %td, %td heads, blocks of %td.\n", options.layers, options.width,
              options.heads, options.block);
  const drawing::LineChart chart = accuracies(options, threads);
  print_table(chart);
  if (!options.svg.empty()) drawing::write_svg(options.svg, chart);
  if (!options.csv.empty()) drawing::write_csv(options.csv, chart);
  return training::trained;
}

}  // namespace

int main(int argc, char** argv) {
  return training::run_program("train_recall", about, argc, argv, run);
}
