// SPDX-License-Identifier: MIT
// Case folders to hand to mhla_replay, and the program itself.
#pragma once

#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>

#include "examples/checkpoints/npy.hpp"
#include "tests/examples/run_program.hpp"

namespace test {

inline fs::path golden_folder(const std::string& name) {
  return fs::path(MHLA_SOURCE_DIR) / "tests/golden" / name;
}

/// A copy of a golden case.
inline fs::path copy_golden(const TemporaryFolder& to, const std::string& golden,
                            const std::string& name) {
  fs::copy(golden_folder(golden), to / name);
  return to / name;
}

/// Gives a key of case.txt another value; an empty one removes the line.
inline void set_key(const fs::path& folder, const std::string& key, const std::string& value) {
  std::istringstream lines(text_of(folder / "case.txt"));
  std::string changed = value.empty() ? "" : key + " " + value + "\n";
  for (std::string line; std::getline(lines, line);)
    if (line.rfind(key + " ", 0) != 0) changed += line + "\n";
  write_text(folder / "case.txt", changed);
}

inline double number_of(const fs::path& folder, const std::string& key) {
  std::istringstream lines(text_of(folder / "case.txt"));
  for (std::string line; std::getline(lines, line);)
    if (line.rfind(key + " ", 0) == 0) return std::stod(line.substr(key.size()));
  throw std::runtime_error("no key " + key);
}

/// Adds to one element of an array.
inline void add_to_element(const fs::path& file, std::size_t element, double what) {
  checkpoints::Array array = checkpoints::read_npy(file);
  array.values.at(element) += what;
  checkpoints::write_npy(file, array);
}

/// Runs mhla_replay.
inline Run replay_run(const std::string& arguments) {
  return run_program("'" MHLA_REPLAY "' " + arguments);
}

}  // namespace test
