// SPDX-License-Identifier: MIT
// Panels of small integers: sums of their products are exact in double, whatever the order, so that
// a stage can be compared exactly with a plain loop, and with its adjoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

namespace panels {

using mhla::Index;
using mhla::Span;
using mhla::cpu::Panel;

class IntegerPanel {
 public:
  /// Zeros.
  IntegerPanel(Index rows, Index cols)
      : rows_(rows), cols_(cols), elements_(static_cast<std::size_t>(rows * cols)) {}
  /// Integers from -4 to 4, drawn from `seed`.
  IntegerPanel(Index rows, Index cols, std::uint64_t seed) : IntegerPanel(rows, cols) {
    std::uint64_t counter = 0;
    for (double& element : elements_)
      element = static_cast<double>(mhla::testing::random_index(seed, counter++, 9) - 4);
  }

  Panel<double> panel() { return mhla::cpu::panel(elements_.data(), rows_, cols_); }
  Panel<const double> panel() const { return mhla::cpu::panel(elements_.data(), rows_, cols_); }
  /// All elements, as a row.
  Span<double> row() { return {elements_.data(), rows_ * cols_}; }
  Span<const double> row() const { return {elements_.data(), rows_ * cols_}; }

  double& operator()(Index r, Index c) {
    return elements_[static_cast<std::size_t>(r * cols_ + c)];
  }
  double operator()(Index r, Index c) const {
    return elements_[static_cast<std::size_t>(r * cols_ + c)];
  }
  friend bool operator==(const IntegerPanel&, const IntegerPanel&) = default;

  friend double inner_product(const IntegerPanel& a, const IntegerPanel& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.elements_.size(); ++i) sum += a.elements_[i] * b.elements_[i];
    return sum;
  }

 private:
  Index rows_, cols_;
  std::vector<double> elements_;
};

}  // namespace panels
