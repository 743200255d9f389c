// SPDX-License-Identifier: MIT
// train_video [options]: masked tokens of a moving pattern, predicted with several kinds of
// attention over frames, rows and columns, with and without convolutions for positions.
#include <cstdio>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/variant.hpp>
#include <string>
#include <vector>

#include "../training/attention_of.hpp"
#include "../training/comparison.hpp"
#include "../training/mixing.hpp"
#include "../training/token_prediction.hpp"
#include "moving_pattern.hpp"

namespace {

using namespace train_video;
using training::CommandLine;
using training::Mixing;
using training::Result;
using training::UsageError;

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks3D>;

constexpr const char* about =
    R"(usage: train_video [options]
Trains a small transformer on videos that it draws itself: regions of 8 colors that move over a
torus. Three of four tokens are masked; their colors are to be predicted from the others. Prints one
table: none, linear, softmax and MHLA, and each with a convolution for positions (CPE).
Exit status: 0 trained, 1 failed, 2 the command line cannot be followed.

)";

struct Options : training::Options {
  VideoShape video;
  Index block[3] = {2, 2, 2};
  Index layers = 2;
  Index width = 48;
  Index heads = 3;

  Options() { schedule = {.steps = 800, .batch = 4, .rate = 0.01, .seed = 1}; }

  void add_to(CommandLine& line) {
    line.number("--frames", video.frames, Index{1}, Index{1} << 10, "of a video");
    line.number("--rows", video.height, Index{1}, Index{1} << 10, "tokens of a frame's column");
    line.number("--columns", video.width, Index{1}, Index{1} << 10, "and of its row");
    line.number("--masked", video.masked, Index{1}, Index{1} << 30, "tokens to predict");
    line.number("--block-frames", block[0], Index{1}, Index{1} << 10, "of an MHLA block");
    line.number("--block-rows", block[1], Index{1}, Index{1} << 10, "tokens of its column");
    line.number("--block-columns", block[2], Index{1}, Index{1} << 10, "and of its row");
    line.number("--layers", layers, Index{1}, Index{64}, "attention and MLP layers");
    line.number("--width", width, Index{2}, Index{1} << 13, "features of a token");
    line.number("--heads", heads, Index{1}, Index{1} << 8, "attention heads");
    training::Options::add_to(line);
  }
};

Result train(Mixing mixing, bool positional_convolution, const Options& options,
             const mhla::ForkJoin& threads) {
  const MovingPattern videos(options.video, options.schedule.seed);
  const auto& [frames, height, width, masked] = options.video;
  const training::TransformerShape shape{
      .mixing = mixing,
      .attention = training::any_attention(
          Attention{.blocks = {.grid = {frames, height, width},
                               .block = {options.block[0], options.block[1], options.block[2]}}}),
      .tokens = videos.tokens(),
      .layers = options.layers,
      .width = options.width,
      .heads = options.heads,
      .positional_convolution = positional_convolution};
  const training::TokenPrediction task(shape, videos);
  const std::string name =
      std::string(training::name_of(mixing)) + (positional_convolution ? ", CPE" : "");
  return training::train(name, task, options.schedule, videos.tokens(), threads);
}

int run(const Options& options) {
  if (options.width % options.heads != 0) throw UsageError("--width must be a multiple of --heads");
  if (options.video.masked > options.video.tokens())
    throw UsageError("--masked exceeds the video's " + std::to_string(options.video.tokens()) +
                     " tokens");
  const mhla::ForkJoin threads(options.thread_count());
  std::printf("%td frames of %td x %td tokens, %td of them masked; blocks of %td x %td x %td.\n\n",
              options.video.frames, options.video.height, options.video.width, options.video.masked,
              options.block[0], options.block[1], options.block[2]);
  std::vector<Result> results;
  for (const bool positional_convolution : {false, true})
    for (const Mixing mixing : training::all_mixings)
      results.push_back(train(mixing, positional_convolution, options, threads));
  training::print_table(results);
  training::write_losses(options, results, "Masked video", "nats per masked token");
  return training::trained;
}

}  // namespace

int main(int argc, char** argv) {
  return training::run_program("train_video", about, argc, argv, run);
}
