// SPDX-License-Identifier: MIT
// A model's sizes and constants, from config.json beside its checkpoint or from the checkpoint's
// metadata. Every key is either applied, or known to change no result, or an error: a key that is
// not read may belong to a different model.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <mhla/core/index.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../checkpoints/json.hpp"
#include "../checkpoints/safetensors.hpp"

namespace released {

using checkpoints::Safetensors;
using checkpoints::text_of;
using checkpoints::UnreadableFile;
using mhla::Index;

class Config {
 public:
  using Json = nlohmann::json;

  /// From a JSON file.
  explicit Config(const std::filesystem::path& file) : file_(file) {
    parse(checkpoints::MappedFile(file).text());
  }
  /// Of a checkpoint: config.json in its folder, or `config` in its metadata.
  explicit Config(const Safetensors& checkpoint)
      : Config(checkpoint, checkpoint.path().parent_path() / "config.json") {}

  /// Whether `name` has a value other than null.
  bool has(const std::string& name) const {
    read_.insert(name);
    const auto found = values_.find(name);
    return found != values_.end() && !found->second.value.is_null();
  }

  /// A word, a flag, an integer, a finite number. \throws UnreadableFile if it is something else,
  /// or if it is missing and has no default.
  std::string word(const std::string& name) const {
    if (!value(name).is_string()) reject(name, "a word");
    return value(name).get<std::string>();
  }
  bool flag(const std::string& name, bool otherwise) const {
    if (!has(name)) return otherwise;
    if (!value(name).is_boolean()) reject(name, "true or false");
    return value(name).get<bool>();
  }
  Index size(const std::string& name) const {
    if (!is_size(value(name))) reject(name, "an integer" + size_range());
    return value(name).get<Index>();
  }
  Index size(const std::string& name, Index otherwise) const {
    return has(name) ? size(name) : otherwise;
  }
  std::vector<Index> sizes(const std::string& name, std::size_t count) const {
    const Json& list = value(name);
    if (!list.is_array() || list.size() != count || !std::all_of(list.begin(), list.end(), is_size))
      reject(name, "a list of " + std::to_string(count) + " integers" + size_range());
    return list.get<std::vector<Index>>();
  }
  /// At least 0.
  double number(const std::string& name, double otherwise) const {
    if (!has(name)) return otherwise;
    const Json& found = value(name);
    // JSON has no infinity, but nlohmann_json before 3.11 may return one for 1e999.
    if (!found.is_number() || !(found.get<double>() >= 0) || std::isinf(found.get<double>()))
      reject(name, "a number of at least 0");
    return found.get<double>();
  }
  /// More than 0.
  double positive(const std::string& name, double otherwise) const {
    const double found = number(name, otherwise);
    if (!(found > 0)) reject(name, "a number above 0");
    return found;
  }
  /// `size` times the ratio that `name` is, rounded down.
  Index scaled(Index size, const std::string& name, double otherwise) const {
    const double product = std::floor(static_cast<double>(size) * number(name, otherwise));
    if (!(product >= 1 && product <= static_cast<double>(largest)))
      reject(name,
             "a ratio that turns " + std::to_string(size) + " into an integer" + size_range());
    return static_cast<Index>(product);
  }

  /// Whichever of two names for the same number is given.
  std::string either(const std::string& name, const std::string& alias) const {
    const bool has_both = has(name) && has(alias);
    if (has_both) require_same(alias, value(name), "the value of " + name);
    return has(name) ? name : alias;
  }

  /// For options of the released code that these programs do not implement: null, or one of
  /// `supported`.
  void require(const std::string& name, std::initializer_list<Json> supported) const {
    if (!has(name) || std::find(supported.begin(), supported.end(), value(name)) != supported.end())
      return;
    std::string list;
    for (const Json& one : supported) list += (list.empty() ? "" : " or ") + one.dump();
    reject(name, list + " (nothing else is supported)");
  }
  /// Switches that must be off: null, false or 0.
  void require_off(std::initializer_list<const char*> names) const {
    for (const char* name : names) require(name, {false, 0});
  }
  /// `name`, if given, must equal a value that the checkpoint or another key determines; `reason`
  /// says which: "channels / num_heads".
  void require_same(const std::string& name, const Json& as, const std::string& reason) const {
    if (has(name) && value(name) != as) reject(name, as.dump() + " (" + reason + ")");
  }
  /// The name of the configuration's class must begin with one of these.
  void require_class(std::span<const std::string_view> classes) const {
    if (!has("model") || names_one_of(classes)) return;
    std::string list;
    for (const std::string_view one : classes)
      list += (list.empty() ? "" : " or ") + std::string(one);
    reject("model", "one that begins with " + list);
  }
  bool names_one_of(std::span<const std::string_view> classes) const {
    const std::string name = word("model");
    return std::any_of(classes.begin(), classes.end(),
                       [&](std::string_view one) { return name.rfind(one, 0) == 0; });
  }
  /// Keys that change no result.
  void ignore(std::initializer_list<const char*> names) const {
    for (const char* name : names) read_.insert(name);
  }
  /// \throws UnreadableFile that names every key that was neither read nor ignored.
  void require_all_read() const {
    std::string others;
    for (const auto& [name, entry] : values_)
      if (read_.count(name) == 0)
        others += (others.empty() ? "" : ", ") + entry.path + " = " + shortened(entry.value);
    if (!others.empty())
      fail("this program does not apply " + others +
           "; results may differ from the released model's. Remove the keys that do not change "
           "them");
  }

  [[noreturn]] void fail(const std::string& problem) const { throw UnreadableFile(file_, problem); }

 private:
  struct Entry {
    std::string path;  ///< "block_kwargs.transform"
    Json value;
  };

  Config(const Safetensors& checkpoint, const std::filesystem::path& beside) : file_(beside) {
    const auto found = checkpoint.metadata().find("config");
    if (std::filesystem::exists(beside)) {
      *this = Config(beside);
    } else if (found != checkpoint.metadata().end()) {
      file_ = checkpoint.path();
      parse(found->second);
    } else {
      throw UnreadableFile(checkpoint.path(),
                           "has no config in its metadata, nor is there a config.json beside it");
    }
  }
  void parse(std::string_view text) {
    const Json root = checkpoints::parse_json(file_, "the configuration", text, deepest);
    if (!root.is_object()) fail("the configuration is not a JSON object");
    for (const auto& [name, value] : root.items()) {
      // Arguments that the released constructors take in a dictionary of their own.
      const bool holds_arguments =
          name == "block_kwargs" || name == "model_args" || name == "model_kwargs";
      if (holds_arguments && value.is_null()) continue;
      if (!holds_arguments || !value.is_object()) {
        add(name, name, value);
        continue;
      }
      for (const auto& [inner, inner_value] : value.items())
        add(inner, name + "." + inner, inner_value);
    }
  }
  static constexpr int deepest = 16;

  void add(const std::string& name, const std::string& path, const Json& value) {
    const auto [at, is_new] = values_.try_emplace(name, Entry{path, value});
    if (!is_new && at->second.value != value)
      fail(path + " is " + shortened(value) + ", but " + at->second.path + " is " +
           shortened(at->second.value));
  }
  const Json& value(const std::string& name) const {
    if (!has(name)) fail("the configuration has no value for " + name);
    return values_.at(name).value;
  }
  [[noreturn]] void reject(const std::string& name, const std::string& expected) const {
    const auto entry = values_.find(name);
    if (entry == values_.end()) fail(name + " is missing; it must be " + expected);
    fail(entry->second.path + " is " + shortened(entry->second.value) + "; it must be " + expected);
  }
  static bool is_size(const Json& number) {
    return number.is_number_integer() && number >= 1 && number <= largest;
  }
  static std::string size_range() { return " from 1 to " + std::to_string(largest); }
  static std::string shortened(const Json& value) {
    const std::string text = value.dump();
    return text.size() <= 80 ? text : text.substr(0, 77) + "...";
  }

  /// Products of two sizes, summed over a model's parameters, must fit an Index.
  static constexpr Index largest = Index{1} << 26;

  std::filesystem::path file_;
  std::map<std::string, Entry> values_;
  mutable std::set<std::string> read_;
};

}  // namespace released
