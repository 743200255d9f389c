// SPDX-License-Identifier: MIT
// All parameters of a model in one array, so that the optimizer, the clipping of the gradient and
// the sum over threads know nothing of layers. A layer knows where in the array its own lie; the
// gradient is an array of the same order.
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
#include <vector>

namespace char_lm {

using mhla::Index;

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Values = Eigen::Array<T, Eigen::Dynamic, 1>;

/// A matrix among the parameters.
struct Parameter {
  std::string name;
  Index begin = 0;
  Index rows = 0;
  Index columns = 0;
  double mean = 0;  ///< of its first values, which are normal numbers
  double deviation = 0;

  Index size() const { return rows * columns; }

  template <class T>
  Eigen::Map<const Matrix<T>> in(const Values<T>& values) const {
    return {values.data() + begin, rows, columns};
  }
  template <class T>
  Eigen::Map<Matrix<T>> in(Values<T>& values) const {
    return {values.data() + begin, rows, columns};
  }
};

class ParameterList {
 public:
  Parameter add(const std::string& name, Index rows, Index columns, double mean, double deviation) {
    all_.push_back({name, size_, rows, columns, mean, deviation});
    size_ += all_.back().size();
    return all_.back();
  }

  const std::vector<Parameter>& all() const { return all_; }
  Index size() const { return size_; }

  template <class T>
  Values<T> initial_values(std::uint64_t seed) const {
    Values<T> values(size_);
    for (const Parameter& parameter : all_) {
      auto map = parameter.in(values);
      mhla::testing::fill_random(mhla::testing::Normal{},
                                 mhla::testing::random_bits(seed, parameter_number(parameter)),
                                 mhla::make_view(map.data(), parameter.size()));
      map.array() =
          static_cast<T>(parameter.mean) + static_cast<T>(parameter.deviation) * map.array();
    }
    return values;
  }

 private:
  std::uint64_t parameter_number(const Parameter& parameter) const {
    return static_cast<std::uint64_t>(&parameter - all_.data());
  }

  std::vector<Parameter> all_;
  Index size_ = 0;
};

}  // namespace char_lm
