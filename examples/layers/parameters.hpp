// SPDX-License-Identifier: MIT
// All parameters of a model in one array, so that the optimizer, the clipping of the gradient and
// the sum over threads know nothing of layers. A layer knows where in the array its own lie; the
// gradient is an array of the same order. Names are those of PyTorch's state dictionaries.
#pragma once

#ifndef EIGEN_USE_THREADS
#define EIGEN_USE_THREADS  // before any Eigen header
#endif
#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <mhla/core/index.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <utility>
#include <vector>

namespace layers {

using mhla::Index;

/// Tokens of all sequences, one a row, [batch * tokens, channels]; or a parameter.
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Values = Eigen::Array<T, Eigen::Dynamic, 1>;

/// A tensor among the parameters, row-major.
struct Parameter {
  std::string name;
  std::vector<Index> shape;
  Index begin = 0;
  double mean = 0;  ///< of its first values, which are normal numbers
  double deviation = 0;

  Index rows() const { return shape.empty() ? 1 : shape.front(); }
  /// Of all axes but the first.
  Index columns() const {
    Index count = 1;
    for (std::size_t axis = 1; axis < shape.size(); ++axis) count *= shape[axis];
    return count;
  }
  Index size() const { return rows() * columns(); }

  template <class T>
  Eigen::Map<const Matrix<T>> in(const Values<T>& values) const {
    return {values.data() + begin, rows(), columns()};
  }
  template <class T>
  Eigen::Map<Matrix<T>> in(Values<T>& values) const {
    return {values.data() + begin, rows(), columns()};
  }
  /// As one row, whatever its axes.
  template <class T>
  Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>> row(const Values<T>& values) const {
    return {values.data() + begin, size()};
  }
  template <class T>
  Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>> row(Values<T>& values) const {
    return {values.data() + begin, size()};
  }
};

class ParameterList {
 public:
  Parameter add(std::string name, std::vector<Index> shape, double mean, double deviation) {
    all_.push_back({std::move(name), std::move(shape), size_, mean, deviation});
    size_ += all_.back().size();
    return all_.back();
  }

  const std::vector<Parameter>& all() const { return all_; }
  Index size() const { return size_; }

  template <class T>
  Values<T> initial_values(std::uint64_t seed) const {
    Values<T> values(size_);
    std::uint64_t number = 0;
    for (const Parameter& parameter : all_) {
      auto map = parameter.in(values);
      mhla::testing::fill_random(mhla::testing::Normal{},
                                 mhla::testing::random_bits(seed, number++),
                                 mhla::make_view(map.data(), parameter.size()));
      map.array() =
          static_cast<T>(parameter.mean) + static_cast<T>(parameter.deviation) * map.array();
    }
    return values;
  }

 private:
  std::vector<Parameter> all_;
  Index size_ = 0;
};

}  // namespace layers
