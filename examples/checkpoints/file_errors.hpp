// SPDX-License-Identifier: MIT
// What is thrown of files.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

namespace checkpoints {

/// A file that does not hold what it should; what() begins with its name.
class UnreadableFile : public std::runtime_error {
 public:
  UnreadableFile(const std::filesystem::path& file, const std::string& problem)
      : std::runtime_error(file.string() + ": " + problem) {}
};

/// A file that could not be written; what() begins with its name.
class UnwritableFile : public std::runtime_error {
 public:
  UnwritableFile(const std::filesystem::path& file, const std::string& problem)
      : std::runtime_error(file.string() + ": " + problem) {}
};

}  // namespace checkpoints
