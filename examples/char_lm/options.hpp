// SPDX-License-Identifier: MIT
// char_lm's command line.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "../training/comparison.hpp"
#include "../training/mixing.hpp"

namespace char_lm {

using layers::Index;
using training::CommandLine;
using training::Mixing;
using training::UsageError;

inline constexpr const char* about =
    R"(usage: char_lm [options] [TEXT [VALIDATION_TEXT]]
Trains a small causal character model with MHLA, says how well it predicts text it has not seen, and
lets it write. TEXT is any file; without a second one its last tenth is kept for validation. Without
any, the project's own sources are the text, and every tenth file is kept.
Exit status: 0 trained, 1 decoding and the forward pass disagree, 2 the command line cannot be
followed, 3 a text cannot be used.

)";

struct Options : training::Options {
  Mixing mixing = Mixing::mhla;
  Index context = 256;
  Index block = 32;
  Index layers = 2;
  Index width = 96;
  Index heads = 4;
  Index softmax_layers = 0;
  training::BlockMixing block_mixing{.structured = "recurrent", .sizes = "states", .size = 2};
  std::string prompt{};
  Index generate = -1;  ///< -1: up to the end of the context
  double temperature = 0.7;
  bool compare = false;
  bool list = false;
  std::vector<std::string> files{};

  Options() { schedule = {.steps = 360, .batch = 8, .rate = 0.006, .seed = 1}; }

  void add_to(CommandLine& line) {
    line.option("--attention", "KIND",
                "mhla, linear (MHLA of one block, all ones), softmax, or none: a model\n"
                "                     of the current character alone (mhla)",
                [this](const std::string& name) { mixing = training::mixing_of(name); });
    line.number("--softmax-layers", softmax_layers, Index{0}, Index{64},
                "the last layers take softmax attention");
    line.flag("--compare", compare,
              "trains all four kinds, and MHLA with one softmax layer; prints one table");
    block_mixing.add_to(line, ": a bounded state; --compare: trains both alone");
    line.number("--context", context, Index{2}, Index{1} << 16, "characters of a window");
    line.number("--block", block, Index{1}, Index{1} << 16, "characters of an MHLA block");
    line.number("--layers", layers, Index{1}, Index{64}, "attention and MLP layers");
    line.number("--width", width, Index{2}, Index{1} << 13,
                "features of a character, a multiple of twice the heads");
    line.number("--heads", heads, Index{1}, Index{1} << 8, "attention heads");
    training::Options::add_to(line);
    line.text("--prompt", "TEXT", prompt,
              "what the writing goes on from (the beginning of the validation text)");
    line.number("--generate", generate, Index{0}, Index{1} << 16,
                "characters to write; -1: up to the end of the context");
    line.number("--temperature", temperature, 0.0, 100.0, "0 takes the likeliest character");
    line.flag("--list", list, "only says which files the default text consists of");
    line.others(files, 2, "texts");
  }

  /// Throws a UsageError where values do not go together.
  void check() const {
    if (!(svg.empty() && csv.empty()) && !compare)
      throw UsageError("--svg and --csv go with --compare");
    if (width % (2 * heads) != 0)
      throw UsageError(
          "--width must be a multiple of twice the heads: the features of a head are "
          "rotated in pairs");
    if (softmax_layers > layers) throw UsageError("--softmax-layers exceeds --layers");
    const auto prompt_size = std::max(Index{1}, static_cast<Index>(prompt.size()));
    if (prompt_size + std::max(generate, Index{0}) > context)
      throw UsageError("the prompt and what is written must fit into the context of " +
                       std::to_string(context) + " characters");
  }
};

}  // namespace char_lm
