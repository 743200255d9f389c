// SPDX-License-Identifier: MIT
// char_lm's command line.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <mhla/core/index.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace char_lm {

using mhla::Index;

inline constexpr std::string_view usage =
    R"(usage: char_lm [options] [TEXT [VALIDATION_TEXT]]
Trains a small causal character model with MHLA, says how well it predicts text it has not seen, and
lets it write. TEXT is any file; without a second one its last tenth is kept for validation. Without
any, the project's own sources are the text, and every tenth file is kept.

  --attention mhla|linear|softmax|none
                     what mixes the tokens: MHLA, linear attention (MHLA of one block, all ones),
                     softmax attention, or nothing: a model of the current character alone (mhla)
  --compare          trains all four one after the other, and prints one table
  --svg FILE         with --compare: draws the losses, averaged over some steps each
  --csv FILE         with --compare: writes the numbers of that picture
  --steps N          updates of the parameters (360)
  --batch N          windows of text in each (8)
  --context N        characters of a window (256)
  --block N          characters of an MHLA block (32)
  --layers N         attention and MLP layers (2)
  --width N          features of a character, a multiple of twice the heads (96)
  --heads N          attention heads (4)
  --rate X           largest learning rate (0.006)
  --seed N           of the first parameters, the windows and the writing (1)
  --threads N        (as many as the machine runs at once)
  --prompt TEXT      what the writing goes on from (the beginning of the validation text)
  --generate N       characters to write (up to the end of the context)
  --temperature X    of the writing; 0 takes the likeliest character (0.7)
  --list             only says which files the default text consists of
  --help

Exit status: 0 trained, 1 decoding and the forward pass disagree, 2 the command line cannot be
followed, 3 a text cannot be used.
)";

/// A command line that cannot be followed.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What passes information from token to token.
enum class Mixing { mhla, linear, softmax, none };

inline const char* name_of(Mixing mixing) {
  switch (mixing) {
    case Mixing::mhla:
      return "mhla";
    case Mixing::linear:
      return "linear";
    case Mixing::softmax:
      return "softmax";
    case Mixing::none:
      return "none";
  }
  return "";
}

struct Options {
  Mixing mixing = Mixing::mhla;
  Index steps = 360;
  Index batch = 8;
  Index context = 256;
  Index block = 32;
  Index layers = 2;
  Index width = 96;
  Index heads = 4;
  double rate = 0.006;
  std::uint64_t seed = 1;
  int threads = 0;  ///< 0: as many as the machine runs at once
  std::string prompt{};
  Index generate = -1;  ///< -1: up to the end of the context
  double temperature = 0.7;
  bool compare = false;
  std::string svg{};
  std::string csv{};
  bool list = false;
  bool help = false;
  std::vector<std::string> files{};
};

inline Mixing mixing_of(const std::string& name) {
  for (const Mixing mixing : {Mixing::mhla, Mixing::linear, Mixing::softmax, Mixing::none})
    if (name == name_of(mixing)) return mixing;
  throw UsageError("--attention is mhla, linear, softmax or none, not " + name);
}

inline Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == arguments.size()) throw UsageError(argument + " needs a value");
      return arguments[++i];
    };
    const auto number = [&](auto least, auto most) {
      const std::string& text = value();
      auto parsed = least;
      const char* const end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data(), end, parsed);
      if (error != std::errc() || stop != end || !(parsed >= least && parsed <= most))
        throw UsageError(argument + " cannot be " + text);
      return parsed;
    };
    if (argument == "--attention") {
      options.mixing = mixing_of(value());
    } else if (argument == "--compare") {
      options.compare = true;
    } else if (argument == "--svg") {
      options.svg = value();
    } else if (argument == "--csv") {
      options.csv = value();
    } else if (argument == "--steps") {
      options.steps = number(Index{1}, Index{1} << 30);
    } else if (argument == "--batch") {
      options.batch = number(Index{1}, Index{1} << 16);
    } else if (argument == "--context") {
      options.context = number(Index{2}, Index{1} << 16);
    } else if (argument == "--block") {
      options.block = number(Index{1}, Index{1} << 16);
    } else if (argument == "--layers") {
      options.layers = number(Index{1}, Index{64});
    } else if (argument == "--width") {
      options.width = number(Index{2}, Index{1} << 13);
    } else if (argument == "--heads") {
      options.heads = number(Index{1}, Index{1} << 8);
    } else if (argument == "--rate") {
      options.rate = number(1e-9, 1.0);
    } else if (argument == "--seed") {
      options.seed = number(std::uint64_t{0}, ~std::uint64_t{0});
    } else if (argument == "--threads") {
      options.threads = number(1, 1024);
    } else if (argument == "--prompt") {
      options.prompt = value();
      if (options.prompt.empty()) throw UsageError("--prompt needs at least one character");
    } else if (argument == "--generate") {
      options.generate = number(Index{0}, Index{1} << 16);
    } else if (argument == "--temperature") {
      options.temperature = number(0.0, 100.0);
    } else if (argument == "--list") {
      options.list = true;
    } else if (argument == "--help") {
      options.help = true;
    } else if (argument.rfind("--", 0) == 0) {
      throw UsageError("unknown option " + argument);
    } else if (options.files.size() == 2) {
      throw UsageError("more than two texts");
    } else {
      options.files.push_back(argument);
    }
  }
  if (!(options.svg + options.csv).empty() && !options.compare)
    throw UsageError("--svg and --csv go with --compare");
  if (options.width % (2 * options.heads) != 0)
    throw UsageError(
        "--width must be a multiple of twice the heads: the features of a head are "
        "rotated in pairs");
  const auto prompt = std::max(Index{1}, static_cast<Index>(options.prompt.size()));
  if (prompt + std::max(options.generate, Index{0}) > options.context)
    throw UsageError("the prompt and what is written must fit into the context of " +
                     std::to_string(options.context) + " characters");
  return options;
}

}  // namespace char_lm
