// SPDX-License-Identifier: MIT
// Groups of checks, each a test of ctest: checks.hpp defines them. A scalar's translation unit,
// where a program has it, enters its own.
#pragma once

#include <string>
#include <vector>

#include "report.hpp"

namespace gpu {

struct Group {
  const char* name;
  const char* scalar;
  void (*check)(Report&);
};

/// The path that the command line leaves of those that a group goes through; empty: all.
inline std::string only_path;

/// Of all scalars of the program.
inline std::vector<Group>& groups() {
  static std::vector<Group> all;
  return all;
}

}  // namespace gpu
