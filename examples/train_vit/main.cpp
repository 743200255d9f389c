// SPDX-License-Identifier: MIT
// train_vit [options]: a small vision transformer trained from nothing with several kinds of
// attention, with and without convolutions for positions and output gates; or with MHLA of ever
// more blocks.
#include <cstdio>
#include <memory>
#include <mhla/policy/propose_blocks.hpp>
#include <string>
#include <vector>

#include "../training/comparison.hpp"
#include "../training/mixing.hpp"
#include "classifier.hpp"
#include "image_files.hpp"

namespace {

using namespace train_vit;
using training::CommandLine;
using training::Result;
using training::UsageError;

constexpr const char* about =
    R"(usage: train_vit [options]
Trains a small vision transformer on images that it draws itself: a marker among shapes of eight
kinds; the class is the kind of the nearest one. Prints one table: none, linear, softmax, MHLA, and
the last three with a convolution for positions (CPE) and with an output gate; with --mixing
separable, MHLA by a dense matrix and by Kronecker products.
Exit status: 0 trained, 1 failed, 2 the command line cannot be followed, 3 images cannot be used.

)";

struct Options : training::Options {
  ModelShape shape;
  training::BlockMixing block_mixing{.structured = "separable", .sizes = "rank", .size = 2};
  bool sweep = false;
  std::string idx_images;
  std::string idx_labels;
  std::vector<std::string> cifar;

  Options() { schedule = {.steps = 800, .batch = 32, .rate = 0.004, .seed = 1}; }

  void add_to(CommandLine& line) {
    line.flag("--sweep", sweep, "trains MHLA alone, of 1 block to one for every token");
    block_mixing.add_to(line, ", and then beside dense alone");
    line.number("--patch", shape.patch, Index{1}, Index{64}, "pixels of a patch's side");
    line.number("--block-rows", shape.block[0], Index{1}, Index{1} << 12,
                "tokens of a block along a column");
    line.number("--block-columns", shape.block[1], Index{1}, Index{1} << 12, "and along a row");
    line.number("--layers", shape.layers, Index{1}, Index{64}, "attention and MLP layers");
    line.number("--width", shape.width, Index{2}, Index{1} << 13, "features of a token");
    line.number("--heads", shape.heads, Index{1}, Index{1} << 8, "attention heads");
    line.text("--images", "FILE", idx_images, "IDX images (MNIST's format) to learn instead");
    line.text("--labels", "FILE", idx_labels, "and their labels");
    line.option("--cifar", "FILE", "CIFAR-10's binary images instead; may be repeated",
                [this](const std::string& name) { cifar.push_back(name); });
    training::Options::add_to(line);
  }
};

std::unique_ptr<Images> images_of(const Options& options) {
  if (options.idx_images.empty() != options.idx_labels.empty())
    throw UsageError("--images and --labels go together");
  const std::uint64_t seed = options.schedule.seed;
  if (!options.idx_images.empty())
    return std::make_unique<ImageFiles>(
        ImageFiles::idx(options.idx_images, options.idx_labels, seed));
  if (!options.cifar.empty())
    return std::make_unique<ImageFiles>(ImageFiles::cifar(options.cifar, seed));
  return std::make_unique<DrawnShapes>(seed);
}

Result train(const std::string& name, const ModelShape& shape, const Options& options,
             const Images& images, const mhla::ForkJoin& threads) {
  const Classifier classifier(shape, images);
  return training::train(name, classifier, options.schedule, classifier.tokens(), threads);
}

std::vector<Result> compare(const Options& options, const Images& images,
                            const mhla::ForkJoin& threads) {
  std::vector<Result> results;
  for (const bool positional_convolution : {false, true})
    for (const bool gate : {false, true}) {
      ModelShape shape = options.shape;
      shape.positional_convolution = positional_convolution;
      shape.gate = gate;
      const auto add = [&](const std::string& kind) {
        const std::string name =
            kind + (positional_convolution ? ", CPE" : "") + (gate ? ", gate" : "");
        results.push_back(train(name, shape, options, images, threads));
      };
      if (!options.block_mixing.dense) {
        add("dense");
        shape.rank = options.block_mixing.size;
        add(options.block_mixing.structured);
        continue;
      }
      for (const Mixing mixing : training::all_mixings) {
        // Without attention a gate has nothing to let through.
        if (mixing == Mixing::none && (gate || positional_convolution)) continue;
        shape.mixing = mixing;
        add(training::name_of(mixing));
      }
    }
  return results;
}

/// Square blocks of 1, 1/2, 1/4, ... of the grid.
std::vector<Result> sweep(const Options& options, const Images& images,
                          const mhla::ForkJoin& threads) {
  std::vector<Result> results;
  const Index rows = images.shape().height / options.shape.patch;
  const Index columns = images.shape().width / options.shape.patch;
  for (Index parts = 1; parts <= std::min(rows, columns); parts *= 2) {
    ModelShape shape = options.shape;
    shape.block[0] = mhla::ceil_div(rows, parts);
    shape.block[1] = mhla::ceil_div(columns, parts);
    const Index blocks =
        mhla::ceil_div(rows, shape.block[0]) * mhla::ceil_div(columns, shape.block[1]);
    results.push_back(train("M = " + std::to_string(blocks), shape, options, images, threads));
  }
  return results;
}

int run(const Options& options) {
  const std::unique_ptr<Images> images = images_of(options);
  const ImageShape image = images->shape();
  if (image.height % options.shape.patch != 0 || image.width % options.shape.patch != 0)
    throw UsageError("--patch must divide the images' " + std::to_string(image.height) + " x " +
                     std::to_string(image.width) + " pixels");
  if (options.shape.width % options.shape.heads != 0)
    throw UsageError("--width must be a multiple of --heads");
  const mhla::ForkJoin threads(options.thread_count());
  std::printf(
      "Images of %td x %td x %td, %td classes, in patches of %td x %td: %td tokens; %td layers "
      "of width %td, %td heads.\n\n",
      image.channels, image.height, image.width, images->classes(), options.shape.patch,
      options.shape.patch, image.height * image.width / (options.shape.patch * options.shape.patch),
      options.shape.layers, options.shape.width, options.shape.heads);
  const std::vector<Result> results =
      options.sweep ? sweep(options, *images, threads) : compare(options, *images, threads);
  training::print_table(results);
  training::write_losses(options, results, "Vision transformer", "nats per image");
  return training::trained;
}

}  // namespace

int main(int argc, char** argv) {
  return training::run_program("train_vit", about, argc, argv, run);
}
