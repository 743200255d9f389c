// SPDX-License-Identifier: MIT
// A model's tensors in a checkpoint, which may hold more than the model.
#pragma once

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
  /// Of tensors `prefix` + name.
  explicit Checkpoint(const Safetensors& file, std::string prefix = "")
      : file_(file), prefix_(std::move(prefix)) {}

  bool has(const std::string& name) const { return file_.has(prefix_ + name); }
  /// \throws UnreadableFile if it is missing, or does not have `axes` axes.
  const std::vector<mhla::Index>& shape(const std::string& name, std::size_t axes) const {
    const auto& shape = file_.tensor(prefix_ + name).shape;
    if (shape.size() != axes)
      throw checkpoints::UnreadableFile(
          file_.path(), prefix_ + name + " has the shape " + checkpoints::text_of(shape));
    return shape;
  }

  /// The parameters' values. \throws UnreadableFile if one is missing or has another shape.
  template <class T>
  layers::Values<T> values_of(const layers::ParameterList& list) const {
    layers::Values<T> values(list.size());
    for (const layers::Parameter& parameter : list.all())
      file_.tensor(prefix_ + parameter.name, parameter.shape)
          .copy_to(values.data() + parameter.begin);
    return values;
  }
  /// Tensors that no parameter is made of.
  std::vector<std::string> unused(const layers::ParameterList& list) const {
    std::set<std::string> used;
    for (const layers::Parameter& parameter : list.all()) used.insert(prefix_ + parameter.name);
    std::vector<std::string> others;
    for (const auto& [name, tensor] : file_.tensors())
      if (name.rfind(prefix_, 0) == 0 && used.count(name) == 0) others.push_back(name);
    return others;
  }

 private:
  const Safetensors& file_;
  std::string prefix_;
};

}  // namespace released
