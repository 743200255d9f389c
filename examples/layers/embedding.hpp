// SPDX-License-Identifier: MIT
// A table of vectors, one for each symbol.
#pragma once

#include <string>
#include <vector>

#include "parameters.hpp"

namespace layers {

class Embedding {
 public:
  Embedding(ParameterList& list, const std::string& name, Index symbols, Index width)
      : table_(list.add(name, {symbols, width}, 0, 1)) {}

  const Parameter& table() const { return table_; }

  template <class T, class Symbol>
  void forward(const Values<T>& values, const std::vector<Symbol>& symbols, Matrix<T>& x) const {
    const auto table = table_.in(values);
    x.resize(static_cast<Index>(symbols.size()), table.cols());
    for (std::size_t t = 0; t < symbols.size(); ++t)
      x.row(static_cast<Index>(t)) = table.row(symbols[t]);
  }
  /// Adds to the table's gradient, which a head that shares it has written before.
  template <class T, class Symbol>
  void add_backward(const std::vector<Symbol>& symbols, const Matrix<T>& dx,
                    Values<T>& gradient) const {
    auto table = table_.in(gradient);
    for (std::size_t t = 0; t < symbols.size(); ++t)
      table.row(symbols[t]) += dx.row(static_cast<Index>(t));
  }

 private:
  Parameter table_;
};

/// A learned vector for each place, added to the tokens of every sequence. [1, tokens, width].
class PositionEmbedding {
 public:
  PositionEmbedding(ParameterList& list, const std::string& name, Index tokens, Index width)
      : width_(width), table_(list.add(name, {1, tokens, width}, 0, 0.02)) {}

  template <class T>
  void add_forward(const Values<T>& values, Matrix<T>& x) const {
    const Eigen::Map<const Matrix<T>> table(table_.row(values).data(), tokens(), width_);
    for (Index first = 0; first < x.rows(); first += tokens())
      x.middleRows(first, tokens()) += table;
  }
  template <class T>
  void backward(const Matrix<T>& dx, Values<T>& gradient) const {
    Eigen::Map<Matrix<T>> table(table_.row(gradient).data(), tokens(), width_);
    table.setZero();
    for (Index first = 0; first < dx.rows(); first += tokens())
      table += dx.middleRows(first, tokens());
  }

 private:
  Index tokens() const { return table_.size() / width_; }

  Index width_;
  Parameter table_;
};

}  // namespace layers
