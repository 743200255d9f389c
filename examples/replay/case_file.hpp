// SPDX-License-Identifier: MIT
// What a case folder's case.txt says: one "key value..." per line. A missing key, a number that is
// none and a case that contradicts itself are unreadable; a value or a key that this program does
// not know is unsupported, never a guess.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <mhla/core/index.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../checkpoints/npy.hpp"

namespace replay {

using checkpoints::UnreadableFile;
using mhla::Index;

/// A case that asks for something this program or the library does not do; what() says what.
class UnsupportedCase : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A word that a key can have, and what it means.
template <class Value>
struct Word {
  const char* text;
  Value value;
};

/// A key that a case.txt can have, and what follows it, as --help says it.
struct Key {
  std::string name;
  std::string values;
};

template <class Value, std::size_t count>
std::string listed(const Word<Value> (&words)[count]) {
  std::string text;
  for (const Word<Value>& word : words) text += (text.empty() ? "" : "|") + std::string(word.text);
  return text;
}

/// The lines of one case.txt, asked for by key.
class CaseFile {
 public:
  explicit CaseFile(const std::filesystem::path& folder) : file_(folder / "case.txt") {
    std::ifstream stream(file_);
    if (!stream) throw UnreadableFile(file_, "cannot be opened");
    std::string line;
    while (std::getline(stream, line)) {
      std::istringstream words(line);
      std::string key;
      if (!(words >> key)) continue;
      std::vector<std::string> values;
      for (std::string value; words >> value;) values.push_back(value);
      if (!lines_.emplace(key, values).second) fail("has the key " + key + " twice");
    }
    if (stream.bad()) throw UnreadableFile(file_, "cannot be read to its end");
    if (lines_.empty()) fail("holds no key");
  }

  [[noreturn]] void fail(const std::string& problem) const { throw UnreadableFile(file_, problem); }

  bool has(const std::string& key) const { return lines_.count(key) != 0; }

  const std::vector<std::string>& words(const std::string& key) const {
    const auto line = lines_.find(key);
    if (line == lines_.end()) fail("has no key " + key);
    if (line->second.empty()) fail("has no value for " + key);
    return line->second;
  }
  const std::string& word(const std::string& key) const {
    const std::vector<std::string>& all = words(key);
    if (all.size() != 1) fail("has more than one value for " + key);
    return all[0];
  }

  /// A finite number.
  double number(const std::string& key) const {
    const double value = parsed<double>(key, word(key));
    if (!std::isfinite(value)) fail("has a value that is not finite for " + key);
    return value;
  }
  /// A size: an integer, at least `least`.
  Index size(const std::string& key, Index least = 0) const {
    return at_least(least, key, parsed<Index>(key, word(key)));
  }
  std::vector<Index> sizes(const std::string& key, Index least) const {
    std::vector<Index> result;
    for (const std::string& text : words(key))
      result.push_back(at_least(least, key, parsed<Index>(key, text)));
    return result;
  }
  /// A size of one to three axes.
  std::vector<Index> axes(const std::string& key, Index least) const {
    std::vector<Index> result = sizes(key, least);
    if (result.size() > 3) fail("has more than three values for " + key);
    return result;
  }

  /// The value that the key's word names, of those known.
  template <class Value, std::size_t count>
  Value one_of(const std::string& key, const Word<Value> (&known)[count]) const {
    const std::string& name = word(key);
    for (const Word<Value>& candidate : known)
      if (name == candidate.text) return candidate.value;
    throw UnsupportedCase(key + " " + name + " is not known");
  }

  /// Throws UnsupportedCase where a line has a key that is not among `keys`: it may change what is
  /// meant.
  void require_known(const std::vector<Key>& keys) const {
    for (const auto& [key, values] : lines_) {
      const auto is_it = [&name = key](const Key& known) { return known.name == name; };
      if (std::none_of(keys.begin(), keys.end(), is_it))
        throw UnsupportedCase("the key " + key + " is not known");
    }
  }

 private:
  template <class Number>
  Number parsed(const std::string& key, const std::string& text) const {
    Number value{};
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end) fail("has '" + text + "' for " + key);
    return value;
  }
  Index at_least(Index least, const std::string& key, Index value) const {
    if (value < least)
      fail("has " + std::to_string(value) + " for " + key + ", which is at least " +
           std::to_string(least));
    return value;
  }

  std::filesystem::path file_;
  std::map<std::string, std::vector<std::string>> lines_;
};

/// What a case is about.
enum class Kind { attention, mix_init };

inline constexpr Word<Kind> kinds[] = {{"attention", Kind::attention},
                                       {"mix_init", Kind::mix_init}};

inline Kind read_kind(const CaseFile& file) { return file.one_of("kind", kinds); }

}  // namespace replay
