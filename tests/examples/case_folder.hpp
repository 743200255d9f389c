// SPDX-License-Identifier: MIT
// Case folders to hand to mhla_replay: golden ones, and, for what no golden case covers, others of
// which the oracle says what is expected.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "examples/checkpoints/npy.hpp"
#include "tests/cpu/call.hpp"
#include "tests/examples/run_program.hpp"

namespace test {

inline fs::path golden_folder(const std::string& name) {
  return fs::path(MHLA_SOURCE_DIR) / "tests/golden" / name;
}

/// A case in a folder of its own, removed at the end.
struct Case {
  TemporaryFolder temporary;
  fs::path folder;

  /// A copy of a golden case.
  explicit Case(const std::string& golden, const std::string& name = "case")
      : folder(temporary / name) {
    fs::copy(golden_folder(golden), folder);
  }
  /// An empty folder.
  Case() : folder(temporary / "case") { fs::create_directory(folder); }

  fs::path text() const { return folder / "case.txt"; }
  fs::path array(const std::string& name) const { return folder / (name + ".npy"); }

  /// Gives a key of case.txt another value, after which lines of others may be; an empty one
  /// removes the line.
  void set(const std::string& key, const std::string& value) const {
    const std::string added = key + " " + value + "\n";
    std::string changed = value.empty() ? "" : added;
    std::istringstream lines(text_of(text()));
    for (std::string line; std::getline(lines, line);)
      if (!says("\n" + added, "\n" + line.substr(0, line.find(' ') + 1))) changed += line + "\n";
    write_text(text(), changed);
  }
  double number(const std::string& key) const {
    return figure_after(text_of(text()), "\n" + key + " ");
  }
  void write(const std::string& name, const checkpoints::Array& values) const {
    checkpoints::write_npy(array(name), values);
  }
  /// Adds to one element of an array.
  void add(const std::string& name, std::size_t element, double what) const {
    checkpoints::Array changed = checkpoints::read_npy(array(name));
    changed.values.at(element) += what;
    write(name, changed);
  }
};

}  // namespace test
