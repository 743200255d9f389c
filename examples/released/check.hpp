// SPDX-License-Identifier: MIT
// Whether a model computes what its folder says:
//
//   config.json, model.safetensors
//   forward.safetensors     inputs, intermediate values, the output
//   gradients.safetensors   loss_weight.<output> R, and grad.<name> of L = sum(R o output)
//
// and, for a block alone, gradients_block.safetensors. The error of a tensor is max |a - b| over
// max |b|, b the file's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "checkpoint.hpp"
#include "config.hpp"
#include "record.hpp"
#include "run_context.hpp"

namespace released {

/// The largest errors allowed.
struct Bounds {
  double output;
  double intermediate;
  double gradient;

  template <class T>
  static constexpr Bounds of() {
    // In double: files keep intermediate values in float, all else in double.
    return std::is_same_v<T, double> ? Bounds{1e-11, 2e-7, 1e-11} : Bounds{1e-5, 1e-5, 5e-5};
  }
};

/// Compares, prints a line for each tensor, and remembers whether all were within bounds.
class Comparison {
 public:
  explicit Comparison(std::string precision) : precision_(std::move(precision)) {}

  void compare(const std::string& name, const RecordedTensor& found,
               const checkpoints::StoredTensor& expected, double bound) {
    double error = 0, largest = 0;
    if (found.shape == expected.shape) {
      const std::vector<double> values = expected.elements<double>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        largest = std::max(largest, std::abs(values[i]));
        const double distance = std::abs(found.values[i] - values[i]);
        error = std::isnan(distance) ? INFINITY : std::max(error, distance);
      }
      error = error == 0 ? 0 : error / largest;
    } else {
      error = INFINITY;
    }
    const bool is_within = error <= bound;
    std::printf("%-7s %-52s %8.1e  at most %.0e%s\n", precision_.c_str(), name.c_str(), error,
                bound, is_within ? "" : "  FAILED");
    if (found.shape != expected.shape)
      std::printf("        its shape is %s, not %s\n", text_of(found.shape).c_str(),
                  text_of(expected.shape).c_str());
    ++compared_;
    if (!is_within) ++failed_;
  }
  void not_computed(const std::string& name) {
    std::printf("%-7s %-52s not computed  FAILED\n", precision_.c_str(), name.c_str());
    ++compared_, ++failed_;
  }

  int compared() const { return compared_; }
  int failed() const { return failed_; }

 private:
  std::string precision_;
  int compared_ = 0;
  int failed_ = 0;
};

/// Adds the parameters' gradients to what was recorded.
template <class T>
void record_gradients(const layers::ParameterList& list, const Values<T>& gradient,
                      const Record& record) {
  for (const layers::Parameter& parameter : list.all())
    record("grad." + parameter.name, parameter.shape, parameter.in(gradient));
}

inline void compare_gradients(const Safetensors& file,
                              const std::map<std::string, RecordedTensor>& found, double bound,
                              Comparison& comparison) {
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.rfind("grad.", 0) != 0) continue;
    const auto computed = found.find(name);
    if (computed == found.end())
      comparison.not_computed(name);
    else
      comparison.compare(name, computed->second, tensor, bound);
  }
}

/// The logits of a language model that gets its tokens in portions of growing length.
template <class Model, class T>
RecordedTensor decoded(Model& model, const Values<T>& values, const Safetensors& inputs) {
  const auto& stored = inputs.tensor("input_ids");
  const std::vector<Index> ids = stored.elements<Index>();
  RecordedTensor logits{{stored.shape[0], stored.shape[1], model.vocabulary()}, {}};
  for (Index b = 0; b < stored.shape[0]; ++b) {
    auto past = model.no_past(values);
    Index portion = 1;
    for (Index first = 0; first < stored.shape[1]; first += portion++) {
      const auto begin = ids.begin() + b * stored.shape[1] + first;
      const Index count = std::min(portion, stored.shape[1] - first);
      const Matrix<T> next = model.forward(values, std::vector<Index>(begin, begin + count), past);
      logits.values.insert(logits.values.end(), next.data(), next.data() + next.size());
    }
  }
  return logits;
}

/// Model<T> on a folder. `inputs` are the names of what the forward pass is given.
template <template <class> class Model, class T>
void check(const std::filesystem::path& folder, const std::set<std::string>& inputs,
           const RunContext& run, Comparison& comparison) {
  const Safetensors file(folder / "model.safetensors");
  const Safetensors forward(folder / "forward.safetensors");
  const Safetensors gradients(folder / "gradients.safetensors");
  const Checkpoint checkpoint(file);
  const Config config(folder / "config.json");
  Model<T> model(config, checkpoint, run);
  const Values<T> values = checkpoint.values_of<T>(model.parameters());
  config.require_all_read();
  checkpoint.require_all_used(model.parameters());
  const Bounds bounds = Bounds::of<T>();

  std::map<std::string, RecordedTensor> found;
  const Record record(found);
  const Matrix<T> result = model.forward(values, forward, record);
  for (const auto& [name, tensor] : forward.tensors()) {
    if (inputs.count(name) != 0) continue;
    const bool is_output = name == Model<T>::output;
    if (found.count(name) == 0)
      comparison.not_computed(name);
    else
      comparison.compare(name, found[name], tensor,
                         is_output ? bounds.output : bounds.intermediate);
  }

  const auto& loss_weight = gradients.tensor(std::string("loss_weight.") + Model<T>::output);
  Values<T> gradient = Values<T>::Zero(values.size());
  model.backward(values, matrix_of<T>(loss_weight, result.rows()), gradient, record);
  record_gradients(model.parameters(), gradient, record);
  compare_gradients(gradients, found, bounds.gradient, comparison);

  if constexpr (requires { model.no_past(values); })
    comparison.compare("logits, a few tokens at a time", decoded(model, values, forward),
                       forward.tensor("logits"), bounds.output);
  if constexpr (requires { &Model<T>::run_block; }) {
    if (const auto path = folder / "gradients_block.safetensors"; std::filesystem::exists(path)) {
      const Safetensors block(path);
      std::map<std::string, RecordedTensor> of_block;
      const Record block_record(of_block);
      gradient.setZero();
      model.run_block(values, forward, matrix_of<T>(block.tensor("loss_weight.blocks.0.out")),
                      gradient, block_record, block_record);
      record_gradients(model.parameters(), gradient, block_record);
      comparison.compare("blocks.0.out", of_block["blocks.0.out"], block.tensor("blocks.0.out"),
                         bounds.output);
      compare_gradients(block, of_block, bounds.gradient, comparison);
    }
  }
}

}  // namespace released
