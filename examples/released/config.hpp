// SPDX-License-Identifier: MIT
// A model's sizes and constants: config.json beside its checkpoint, or what the checkpoint's own
// metadata says.
#pragma once

#include <filesystem>
#include <fstream>
#include <mhla/core/index.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../checkpoints/safetensors.hpp"

namespace released {

using checkpoints::Safetensors;
using checkpoints::text_of;
using checkpoints::UnreadableFile;
using mhla::Index;

class Config {
 public:
  /// From a JSON file.
  explicit Config(const std::filesystem::path& file) : file_(file) {
    std::ifstream stream(file);
    if (!stream) throw UnreadableFile(file, "cannot be read");
    parse(nlohmann::json::parse(stream, nullptr, false));
  }
  /// Of a checkpoint: config.json in its folder, or `config` in its metadata.
  explicit Config(const Safetensors& checkpoint)
      : Config(checkpoint, checkpoint.path().parent_path() / "config.json") {}

  bool has(const std::string& name) const {
    return values_.contains(name) && !values_[name].is_null();
  }
  /// \throws UnreadableFile if it is missing or no T.
  template <class T>
  T get(const std::string& name) const {
    if (!has(name)) throw UnreadableFile(file_, "says nothing of " + name);
    try {
      return values_[name].get<T>();
    } catch (const nlohmann::json::exception&) {
      throw UnreadableFile(file_, name + " is " + values_[name].dump());
    }
  }
  template <class T>
  T get(const std::string& name, const T& otherwise) const {
    return has(name) ? get<T>(name) : otherwise;
  }
  Index size(const std::string& name) const { return at_least_one(name, get<Index>(name)); }
  std::vector<Index> sizes(const std::string& name, std::size_t count) const {
    const auto all = get<std::vector<Index>>(name);
    if (all.size() != count) throw UnreadableFile(file_, name + " is " + values_[name].dump());
    for (const Index one : all) at_least_one(name, one);
    return all;
  }
  /// For what else the released code can do, and these programs cannot.
  template <class T>
  void require(const std::string& name, const T& only) const {
    if (has(name) && get<T>(name) != only)
      throw UnreadableFile(file_, name + " is " + values_[name].dump() + "; only " +
                                      nlohmann::json(only).dump() + " is supported");
  }
  [[noreturn]] void fail(const std::string& problem) const { throw UnreadableFile(file_, problem); }

 private:
  Config(const Safetensors& checkpoint, const std::filesystem::path& beside) : file_(beside) {
    const auto found = checkpoint.metadata().find("config");
    if (std::filesystem::exists(beside)) {
      *this = Config(beside);
    } else if (found != checkpoint.metadata().end()) {
      file_ = checkpoint.path();
      parse(nlohmann::json::parse(found->second, nullptr, false));
    } else {
      throw UnreadableFile(checkpoint.path(),
                           "has no config in its metadata, nor is there a config.json beside it");
    }
  }
  void parse(nlohmann::json values) {
    if (!values.is_object()) throw UnreadableFile(file_, "the configuration is no JSON object");
    values_ = std::move(values);
  }
  Index at_least_one(const std::string& name, Index value) const {
    if (value < 1 || value > (Index{1} << 31))
      throw UnreadableFile(file_, name + " is " + values_[name].dump());
    return value;
  }

  std::filesystem::path file_;
  nlohmann::json values_;
};

}  // namespace released
