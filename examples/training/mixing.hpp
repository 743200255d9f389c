// SPDX-License-Identifier: MIT
// The kinds of attention that a model is trained with, one against the other.
#pragma once

#include <cctype>
#include <string>

#include "command_line.hpp"
#include "scalar.hpp"

namespace training {

/// What passes information from token to token.
enum class Mixing { none, linear, softmax, mhla };

inline constexpr Mixing all_mixings[] = {Mixing::none, Mixing::linear, Mixing::softmax,
                                         Mixing::mhla};

inline const char* name_of(Mixing mixing) {
  switch (mixing) {
    case Mixing::none:
      return "none";
    case Mixing::linear:
      return "linear";
    case Mixing::softmax:
      return "softmax";
    case Mixing::mhla:
      return "MHLA";
  }
  return "";
}

/// Whether MHLA mixes blocks by a dense matrix or by a structured mixing.
struct BlockMixing {
  std::string structured;  ///< its name
  std::string sizes;       ///< "states" or "rank"
  Index size;              ///< how many
  bool dense = true;

  void add_to(CommandLine& line, const std::string& meaning) {
    line.option("--mixing", "KIND", "of MHLA: dense, or " + structured + meaning + " (dense)",
                [this](const std::string& name) {
                  if (name != "dense" && name != structured)
                    throw UsageError("mixing is dense or " + structured + ", not " + name);
                  dense = name == "dense";
                });
    line.number("--" + sizes, size, Index{1}, Index{64}, "of the " + structured + " mixing");
  }
};

/// Its kind, in either case of letters.
inline Mixing mixing_of(std::string name) {
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name == "mhla") return Mixing::mhla;
  for (const Mixing mixing : all_mixings)
    if (name == name_of(mixing)) return mixing;
  throw UsageError("attention is mhla, linear, softmax or none, not " + name);
}

}  // namespace training
