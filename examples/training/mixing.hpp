// SPDX-License-Identifier: MIT
// The kinds of attention that a model is trained with, one against the other.
#pragma once

#include <cctype>
#include <string>

#include "command_line.hpp"

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

/// Its kind, in either case of letters.
inline Mixing mixing_of(std::string name) {
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name == "mhla") return Mixing::mhla;
  for (const Mixing mixing : all_mixings)
    if (name == name_of(mixing)) return mixing;
  throw UsageError("attention is mhla, linear, softmax or none, not " + name);
}

}  // namespace training
