// SPDX-License-Identifier: MIT
// A line for each thing checked, and their number: a test framework of a GPU's size, so that the
// tests build where there is nothing but nvcc and CMake.
#pragma once

#include <cstdio>
#include <string>

namespace gpu {

class Report {
 public:
  /// Names a case before it runs: what a hang, or a crash, was in.
  void begin(const std::string& what) const { print("CASE", what, ""); }
  /// `detail` is what was found; it is printed either way.
  void expect(bool holds, const std::string& what, const std::string& detail = "") {
    ++(holds ? passed_ : failed_);
    print(holds ? "PASS" : "FAIL", what, detail);
  }
  void skip(const std::string& what, const std::string& why) {
    ++skipped_;
    print("SKIP", what, why);
  }

  /// Prints the summary; the exit status of a program. Nothing checked is a failure.
  int finish() const {
    std::printf("%d passed, %d failed, %d skipped\n", passed_, failed_, skipped_);
    return failed_ == 0 && passed_ > 0 ? 0 : 1;
  }

 private:
  static void print(const char* outcome, const std::string& what, const std::string& detail) {
    std::printf("%s  %s%s%s\n", outcome, what.c_str(), detail.empty() ? "" : "  ", detail.c_str());
    std::fflush(stdout);
  }

  int passed_ = 0;
  int failed_ = 0;
  int skipped_ = 0;
};

}  // namespace gpu
