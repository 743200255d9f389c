// SPDX-License-Identifier: MIT
// What the program can do with each model. Each is compiled in a file of its own.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "check.hpp"

namespace released {

/// The words after the checkpoint, as `--name value` or alone.
struct Arguments {
  std::filesystem::path checkpoint;
  std::filesystem::path config;  ///< or empty: beside the checkpoint, or in it
  std::string prefix;
  std::vector<std::string> inputs;
  std::filesystem::path output;  ///< where to write the result as .npy, or empty
  std::vector<double> timesteps = {500};
  std::vector<Index> labels = {0};
  Index tokens = 64;  ///< to be sampled
  double temperature = 0.8;
  std::uint64_t seed = 1;
  std::filesystem::path vocabulary;
  bool in_bfloat16 = false;
};

/// A model of the released code.
struct ReleasedModel {
  const char* name;                           ///< on the command line
  std::span<const std::string_view> classes;  ///< as a configuration names them under "model"
  /// In float and in double.
  void (*check)(const std::filesystem::path&, const RunContext&, Comparison& in_float,
                Comparison& in_double);
  void (*run)(const Arguments&, const RunContext&);
};

extern const ReleasedModel deit;
extern const ReleasedModel dit;
extern const ReleasedModel wan;
extern const ReleasedModel language_model;

/// The configuration that the arguments name.
inline Config config_of(const Arguments& arguments, const Safetensors& file) {
  return arguments.config.empty() ? Config(file) : Config(arguments.config);
}

}  // namespace released
