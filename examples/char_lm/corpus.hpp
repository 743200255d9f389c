// SPDX-License-Identifier: MIT
// The text: what the model is trained on, what it is judged by, and the symbols both are made of.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mhla/core/index.hpp>
#include <string>
#include <vector>

#include "../training/command_line.hpp"

namespace char_lm {

using mhla::Index;

using training::InputError;

/// The bytes of a training text, numbered from 1; 0 stands for every other byte.
class Vocabulary {
 public:
  explicit Vocabulary(const std::string& text) {
    for (const char c : text) symbol_[index_of(c)] = 1;
    for (std::size_t byte = 0; byte < symbol_.size(); ++byte)
      if (symbol_[byte] != 0) {
        bytes_ += static_cast<char>(byte);
        symbol_[byte] = static_cast<int>(bytes_.size());
      }
  }

  /// Symbols, the one for unknown bytes included.
  Index size() const { return static_cast<Index>(bytes_.size()) + 1; }
  int symbol(char c) const { return symbol_[index_of(c)]; }
  char byte(int symbol) const {
    return symbol == 0 ? '?' : bytes_[static_cast<std::size_t>(symbol - 1)];
  }

  std::vector<int> encode(const std::string& text) const {
    std::vector<int> symbols(text.size());
    std::transform(text.begin(), text.end(), symbols.begin(), [&](char c) { return symbol(c); });
    return symbols;
  }
  std::string decode(const std::vector<int>& symbols) const {
    std::string text;
    for (const int s : symbols) text += byte(s);
    return text;
  }

 private:
  static std::size_t index_of(char c) { return static_cast<unsigned char>(c); }

  std::array<int, 256> symbol_{};
  std::string bytes_;
};

/// H(next | current) of a text in nats per character, under the frequencies of its own pairs: no
/// model that sees the current character alone can have a smaller loss on it.
inline double bigram_conditional_entropy(const std::vector<int>& text, Index vocabulary) {
  const auto symbols = static_cast<std::size_t>(vocabulary);
  std::vector<double> pairs(symbols * symbols, 0);
  std::vector<double> current(symbols, 0);
  for (std::size_t t = 0; t + 1 < text.size(); ++t) {
    const auto a = static_cast<std::size_t>(text[t]);
    pairs[a * symbols + static_cast<std::size_t>(text[t + 1])] += 1;
    current[a] += 1;
  }
  double nats = 0;
  for (std::size_t a = 0; a < symbols; ++a)
    for (std::size_t b = 0; b < symbols; ++b)
      if (const double count = pairs[a * symbols + b]; count > 0)
        nats -= count * std::log(count / current[a]);
  return nats / static_cast<double>(text.size() - 1);
}

inline std::string read_text(const std::filesystem::path& file, const std::string& name) {
  std::ifstream stream(file, std::ios::binary);
  std::string text;
  if (std::error_code error; stream && std::filesystem::is_regular_file(file, error))
    text.assign(std::istreambuf_iterator<char>(stream), {});
  if (text.empty()) throw InputError(name + " cannot be read, or is empty");
  return text;
}

/// The project's own text: its sources and its README. Every tenth file, in the order of the names,
/// is kept for validation.
struct ProjectFiles {
  std::vector<std::string> training;
  std::vector<std::string> validation;

  explicit ProjectFiles(const std::filesystem::path& root) {
    std::vector<std::string> names;
    std::error_code error;
    if (std::filesystem::is_regular_file(root / "README.md", error)) names.push_back("README.md");
    for (const char* folder : {"include", "examples", "bench", "tests"}) {
      if (!std::filesystem::is_directory(root / folder, error)) continue;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
        const auto extension = entry.path().extension();
        if (entry.is_regular_file() && (extension == ".hpp" || extension == ".cpp"))
          names.push_back(entry.path().lexically_relative(root).generic_string());
      }
    }
    if (names.size() < 10)
      throw InputError("the project's sources are not where they were compiled; name a text file");
    std::sort(names.begin(), names.end());
    for (std::size_t i = 0; i < names.size(); ++i)
      (i % 10 == 9 ? validation : training).push_back(names[i]);
  }
};

class Corpus {
 public:
  /// Characters of the validation text that are used, at most: reading more takes longer and tells
  /// little more.
  static constexpr std::size_t longest_validation = 100'000;

  /// The project's own text, one file to be split at nine tenths, or two files.
  static Corpus read(const std::filesystem::path& project, const std::vector<std::string>& files,
                     Index context) {
    Corpus corpus;
    if (files.empty()) {
      const ProjectFiles own(project);
      for (const std::string& name : own.training)
        corpus.training_text += read_text(project / name, name);
      for (const std::string& name : own.validation)
        corpus.validation_text += read_text(project / name, name);
      corpus.description = "the project's own sources, " + std::to_string(own.training.size()) +
                           " files to train on and " + std::to_string(own.validation.size()) +
                           " others to validate on (--list names them)";
    } else if (files.size() == 1) {
      const std::string text = read_text(files[0], files[0]);
      const std::size_t split = text.size() - text.size() / 10;
      corpus.training_text = text.substr(0, split);
      corpus.validation_text = text.substr(split);
      corpus.description = shown(files[0]) + ", the last tenth of it to validate on";
    } else {
      corpus.training_text = read_text(files[0], files[0]);
      corpus.validation_text = read_text(files[1], files[1]);
      corpus.description = shown(files[0]) + ", and " + shown(files[1]) + " to validate on";
    }
    const auto least = static_cast<std::size_t>(context) + 1;
    if (corpus.training_text.size() < least || corpus.validation_text.size() < least)
      throw InputError((files.empty() ? std::string("the project's text") : files.back()) +
                       " is too short: to train on and to validate on, " + std::to_string(least) +
                       " characters are needed, one more than the context, and there are " +
                       std::to_string(corpus.training_text.size()) + " and " +
                       std::to_string(corpus.validation_text.size()));
    corpus.validation_is_cut = corpus.validation_text.size() > longest_validation;
    if (corpus.validation_is_cut) corpus.validation_text.resize(longest_validation);
    return corpus;
  }

  std::string description;
  std::string training_text;
  std::string validation_text;
  bool validation_is_cut = false;

 private:
  static std::string shown(const std::string& file) {
    return std::filesystem::path(file).filename().string();
  }
};

}  // namespace char_lm
