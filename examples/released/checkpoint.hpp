// SPDX-License-Identifier: MIT
// A model's tensors in a checkpoint. Every tensor under the model's prefix must be a parameter of
// the model, or a copy of something that the model computes.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../checkpoints/safetensors.hpp"
#include "../layers/parameters.hpp"

namespace released {

using checkpoints::Safetensors;

class Checkpoint {
 public:
  using Index = mhla::Index;

  /// Of tensors `prefix` + name.
  explicit Checkpoint(const Safetensors& file, std::string prefix = "")
      : file_(file), prefix_(std::move(prefix)) {}

  bool has(const std::string& name) const { return file_.has(prefix_ + name); }
  /// \throws UnreadableFile if it is missing, or does not have `axes` axes.
  const std::vector<Index>& shape(const std::string& name, std::size_t axes) const {
    const auto& shape = file_.tensor(prefix_ + name).shape;
    if (shape.size() != axes)
      fail(prefix_ + name + " has the shape " + checkpoints::text_of(shape) + ", not one of " +
           std::to_string(axes) + " axes");
    return shape;
  }
  /// \throws UnreadableFile if it is missing or has another shape. A model asks for its largest
  /// tensors before it computes with sizes that only the configuration contains.
  const checkpoints::StoredTensor& require(const std::string& name,
                                           const std::vector<Index>& shape) const {
    return file_.tensor(prefix_ + name, shape);
  }
  /// \throws UnreadableFile unless there are tensors `list` + l + "." + ... for l < count alone.
  void require_layers(const std::string& list, const std::string& key, Index count) const {
    Index found = 0;
    const std::string begin = prefix_ + list;
    for (const auto& [name, tensor] : file_.tensors()) {
      if (name.rfind(begin, 0) != 0) continue;
      Index layer = 0;
      const char* const end = name.data() + name.size();
      const auto [stop, error] = std::from_chars(name.data() + begin.size(), end, layer);
      if (error == std::errc() && stop != end && *stop == '.' && layer >= found) found = layer + 1;
    }
    if (found != count)
      fail("has tensors of " + std::to_string(found) + " layers (" + begin + "), but " + key +
           " is " + std::to_string(count));
  }

  /// If there is a tensor `name`, it must have these values up to rounding, and counts as used.
  void require_values(const std::string& name, const std::vector<double>& values,
                      double rounding) const {
    if (!has(name)) return;
    const auto& tensor = require(name, {static_cast<Index>(values.size())});
    const double stored = tensor.kind == nullptr || tensor.kind->size > 2 ? 0 : 0x1p-8;
    const std::vector<double> found = tensor.elements<double>();
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!(std::abs(found[i] - values[i]) <= (rounding + stored) * std::abs(values[i])))
        fail(prefix_ + name + " has the element " + std::to_string(found[i]) + " where " +
             std::to_string(values[i]) + " is computed");
    repeated_.insert(prefix_ + name);
  }
  /// If there is a tensor `name`, it must equal `other`, and counts as used.
  void require_repeats(const std::string& name, const std::string& other,
                       const std::string& reason) const {
    if (!has(name)) return;
    const auto& original = file_.tensor(prefix_ + other);
    if (require(name, original.shape).elements<double>() != original.elements<double>())
      fail(prefix_ + name + " differs from " + prefix_ + other + ", but " + reason);
    repeated_.insert(prefix_ + name);
  }

  /// The parameters' values. \throws UnreadableFile if one is missing or has another shape.
  template <class T>
  layers::Values<T> values_of(const layers::ParameterList& list) const {
    for (const layers::Parameter& parameter : list.all()) require(parameter.name, parameter.shape);
    layers::Values<T> values(list.size());
    for (const layers::Parameter& parameter : list.all())
      file_.tensor(prefix_ + parameter.name).copy_to(values.data() + parameter.begin);
    return values;
  }
  /// \throws UnreadableFile that names every tensor that is neither a parameter nor a known copy: the
  /// released code may use it for something that is not computed here.
  void require_all_used(const layers::ParameterList& list) const {
    std::set<std::string> used = repeated_;
    for (const layers::Parameter& parameter : list.all()) used.insert(prefix_ + parameter.name);
    std::string others;
    Index count = 0;
    for (const auto& [name, tensor] : file_.tensors()) {
      if (name.rfind(prefix_, 0) != 0 || used.count(name) != 0) continue;
      others += (count++ == 0 ? "" : ", ") + name;
    }
    if (count > 0)
      fail("the model that the configuration describes has no use for " + std::to_string(count) +
           " tensors: " + others +
           ". Remove them from the checkpoint if they do not affect the result");
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw checkpoints::UnreadableFile(file_.path(), problem);
  }

  const Safetensors& file_;
  std::string prefix_;
  mutable std::set<std::string> repeated_;
};

}  // namespace released
