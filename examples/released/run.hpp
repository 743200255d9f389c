// SPDX-License-Identifier: MIT
// What running any of the models takes: its parameters, tensors from files, results to files.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <mhla/core/scalar.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "../checkpoints/npy.hpp"
#include "checkpoint.hpp"
#include "models.hpp"

namespace released {

/// Words on the command line that make no sense.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// From `least` to `most`.
template <class N>
N number(const std::string& word, const std::string& what, N least, N most) {
  N value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size() ||
      !(value >= least && value <= most))
    throw UsageError(word + " is not " + what);
  return value;
}

/// Separated by commas.
template <class N>
std::vector<N> numbers(const std::string& words, const std::string& what, N least, N most) {
  std::vector<N> all;
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find(',', begin), words.size());
    all.push_back(number<N>(words.substr(begin, end - begin), what, least, most));
    begin = end + 1;
  }
  return all;
}

/// A model in float with the parameters of a checkpoint.
template <template <class> class Model>
struct LoadedModel {
  Safetensors file;
  Checkpoint checkpoint;
  Config config;
  Model<float> model;
  layers::Values<float> values;

  LoadedModel(const Arguments& arguments, const RunContext& run)
      : file(arguments.checkpoint),
        checkpoint(file, arguments.prefix),
        config(config_of(arguments, file)),
        model(config, checkpoint, run),
        values(checkpoint.values_of<float>(model.parameters())) {
    config.require_all_read();
    checkpoint.require_all_used(model.parameters());
    if (arguments.in_bfloat16)
      for (float& value : values) {
        mhla::BFloat16 rounded;
        mhla::store(rounded, value);
        value = mhla::load(rounded);
      }
  }
};

inline checkpoints::Array input(const Arguments& arguments, std::size_t number,
                                const std::string& what) {
  if (arguments.inputs.size() != number + 1) throw UsageError("name " + what + " as one .npy file");
  return checkpoints::read_npy(arguments.inputs[number]);
}
/// -1 stands for any extent.
inline void require_shape(const checkpoints::Array& array, const std::vector<Index>& expected) {
  bool fits = array.shape.size() == expected.size();
  for (std::size_t axis = 0; fits && axis < expected.size(); ++axis)
    fits = expected[axis] < 0 || array.shape[axis] == expected[axis];
  if (!fits)
    throw UsageError("the shape is " + checkpoints::shape_text(array.shape) + "; " +
                     checkpoints::shape_text(expected) + " is needed, where -1 is any");
}
template <class T>
Matrix<T> matrix_of(const checkpoints::Array& array, Index rows) {
  Matrix<T> matrix(rows, rows == 0 ? 0 : static_cast<Index>(array.values.size()) / rows);
  std::transform(array.values.begin(), array.values.end(), matrix.data(),
                 [](double value) { return static_cast<T>(value); });
  return matrix;
}
/// One number for all batch items, or one for each.
template <class N>
std::vector<N> for_each_item(const std::vector<N>& given, Index batch, const std::string& what) {
  if (given.size() == 1) return std::vector<N>(static_cast<std::size_t>(batch), given[0]);
  if (static_cast<Index>(given.size()) != batch)
    throw UsageError(what + " takes one number, or one for each batch item");
  return given;
}

inline void print_summary(const Matrix<float>& result) {
  std::printf("mean %.6f, RMS %.6f, largest %.6f\n", static_cast<double>(result.mean()),
              static_cast<double>(std::sqrt(result.array().square().mean())),
              static_cast<double>(result.cwiseAbs().maxCoeff()));
}
inline void write(const Arguments& arguments, const std::vector<Index>& shape,
                  const Matrix<float>& result) {
  if (arguments.output.empty()) return;
  checkpoints::write_npy(
      arguments.output, {shape, std::vector<double>(result.data(), result.data() + result.size())});
  std::printf("%s %s\n", arguments.output.c_str(), checkpoints::shape_text(shape).c_str());
}

}  // namespace released
