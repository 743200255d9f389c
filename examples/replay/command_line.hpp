// SPDX-License-Identifier: MIT
// mhla_replay's command line.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "attention_case.hpp"
#include "case_file.hpp"
#include "mix_init_case.hpp"

namespace replay {

inline constexpr std::string_view usage =
    R"(usage: mhla_replay [options] CASE_DIR...
Runs attention cases that another framework has dumped, forward and backward, and says whether this
library agrees. A CASE_DIR holds case.txt ("key value..." per line) and .npy arrays in C order:
q, k, v [batch, heads, tokens, dim], mix [1 | heads, query blocks, key blocks], dout, and the
expected out, dq, dk, dv, dmix (proj as well for FAVOR+). For kind mix_init, mix.npy is the expected
initial mixing matrix. tests/golden holds such folders.

  --decode              token by token instead, for cases with causal 1: through mhla::Decoder, for
                        several prefill lengths, of which the largest error counts. Decoding has no
                        gradients: only out is compared, and written
  --scalar f32|f64      compute in float or in double (f64)
  --device serial|pool  on the calling thread or on an Eigen::ThreadPoolDevice (serial)
  --threads N           threads of the pool (as many as the machine runs at once)
  --tolerance T         largest error, relative to the case's tol_scale (1e-12 for f64, 1e-5 for f32)
  --write DIR           leave the results as '<f8' arrays in DIR/<case>, whatever the verdict

Prints a line per case: its verdict, and the largest error of each result relative to tol_scale.
Exit status, the first that applies: 3 a case cannot be read, 1 an error exceeds the tolerance,
2 a case asks for what is not supported, 0 all agree; 64 the command line cannot be followed.
)";

/// The keys of case.txt, one to a line: sizes N, numbers X, words.
inline std::string described(const std::vector<Key>& keys) {
  std::string text;
  for (const Key& key : keys) {
    const std::size_t width = std::max(key.name.size(), std::size_t{20});
    text += "  " + key.name + std::string(width - key.name.size() + 2, ' ') + key.values + "\n";
  }
  return text;
}
inline std::string help() {
  return std::string(usage) +
         "\nKeys of case.txt: N is a size, X a number, (...) what a missing key stands for. All "
         "others "
         "have to\nbe there but name, note, and those of what the case does not have.\n" +
         "\ncase.txt of kind attention:\n" + described(attention_keys()) +
         "\ncase.txt of kind mix_init:\n" + described(mix_init_keys());
}

/// A command line that cannot be followed.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Scalar { f32, f64 };

/// One CASE_DIR, and what its case is called: the folder's own name.
struct CaseFolder {
  std::filesystem::path path;
  std::string name;
};

struct CommandLine {
  Scalar scalar = Scalar::f64;
  bool pool = false;
  bool decode = false;
  int threads = 0;  ///< 0: as many as the machine runs at once
  double tolerance = 0;
  std::filesystem::path write;  ///< empty: nothing is written
  std::vector<CaseFolder> cases;
  bool help = false;
};

inline CaseFolder case_folder(const std::string& argument) {
  std::filesystem::path whole = std::filesystem::absolute(argument).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // a trailing slash
  return {argument, whole.filename().string()};
}

inline CommandLine parse_command_line(const std::vector<std::string>& arguments) {
  CommandLine line;
  bool has_tolerance = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == arguments.size()) throw UsageError(argument + " needs a value");
      return arguments[++i];
    };
    const auto choice = [&](const char* first, const char* second) {
      const std::string& chosen = value();
      if (chosen != first && chosen != second)
        throw UsageError(argument + " is " + first + " or " + second + ", not " + chosen);
      return chosen == first;
    };
    const auto number = [&](auto least) {
      const std::string& text = value();
      auto parsed = least;
      const char* const end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data(), end, parsed);
      if (error != std::errc() || stop != end || !(parsed >= least) || !std::isfinite(parsed))
        throw UsageError(argument + " cannot be " + text);
      return parsed;
    };
    if (argument == "--help") {
      line.help = true;
    } else if (argument == "--decode") {
      line.decode = true;
    } else if (argument == "--scalar") {
      line.scalar = choice("f32", "f64") ? Scalar::f32 : Scalar::f64;
    } else if (argument == "--device") {
      line.pool = !choice("serial", "pool");
    } else if (argument == "--threads") {
      line.threads = number(1);
    } else if (argument == "--tolerance") {
      line.tolerance = number(0.0);
      has_tolerance = true;
    } else if (argument == "--write") {
      line.write = value();
      if (line.write.empty()) throw UsageError("--write needs the name of a folder");
    } else if (argument.rfind("--", 0) == 0) {
      throw UsageError("unknown option " + argument);
    } else {
      line.cases.push_back(case_folder(argument));
    }
  }
  if (line.help) return line;
  if (line.cases.empty()) throw UsageError("no CASE_DIR");
  if (!has_tolerance) line.tolerance = line.scalar == Scalar::f64 ? 1e-12 : 1e-5;
  std::set<std::string> names;
  for (const CaseFolder& folder : line.cases)
    if (!names.insert(folder.name).second && !line.write.empty())
      throw UsageError("--write: two cases are called " + folder.name);
  return line;
}

}  // namespace replay
