// SPDX-License-Identifier: MIT
// A program run as its user runs it, a place for its files, and what it prints.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace test {

namespace fs = std::filesystem;

/// A folder that is gone at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "mhla-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

inline std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

inline void write_text(const fs::path& file, const std::string& text) {
  fs::remove(file);  // some file systems take long to write over one
  std::ofstream(file, std::ios::binary) << text;
}

/// In a command line of the shell.
inline std::string quoted(const fs::path& file) { return " '" + file.string() + "' "; }

struct Run {
  int status = -1;
  std::string output;  ///< stdout and stderr
};

struct Program {
  fs::path path;

  Run operator()(const std::string& arguments) const {
    const std::string command = quoted(path) + arguments + " 2>&1";
    std::FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
    Run run;
    char buffer[4096];
    for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
      run.output.append(buffer, got);
    const int status = pclose(pipe);
    run.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return run;
  }
  /// A run that ends with this status and says all of this; its output.
  std::string check(const std::string& arguments, int status,
                    const std::vector<std::string>& parts = {}) const {
    const Run run = (*this)(arguments);
    INFO(arguments << "\n" << run.output);
    CHECK(run.status == status);
    for (const std::string& part : parts) {
      INFO(part);
      CHECK(says(run.output, part));
    }
    return run.output;
  }
};

/// The figure that follows `label`.
inline double figure_after(const std::string& text, const std::string& label) {
  const std::size_t at = text.find(label);
  if (at == std::string::npos) return std::numeric_limits<double>::quiet_NaN();
  return std::strtod(text.c_str() + at + label.size(), nullptr);
}

}  // namespace test
