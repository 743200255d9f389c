// SPDX-License-Identifier: MIT
// Tensors by name: what a model is given, and what it computes on the way.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../checkpoints/safetensors.hpp"
#include "../layers/convolution.hpp"
#include "../layers/parameters.hpp"

namespace released {

using checkpoints::Safetensors;
using layers::Index;
using layers::Matrix;
using layers::Values;

struct RecordedTensor {
  std::vector<Index> shape;
  std::vector<double> values;
};

/// Passes named tensors on, if anything wants them.
class Record {
 public:
  using Take = std::function<void(const std::string&, RecordedTensor)>;

  Record() = default;
  explicit Record(Take take) : take_(std::move(take)) {}

  /// The elements of a matrix, row by row, under another shape.
  template <class M>
  void operator()(const std::string& name, std::vector<Index> shape, const M& matrix) const {
    if (!wants()) return;
    RecordedTensor tensor{std::move(shape), {}};
    tensor.values.reserve(static_cast<std::size_t>(matrix.size()));
    for (Index r = 0; r < matrix.rows(); ++r)
      for (Index c = 0; c < matrix.cols(); ++c)
        tensor.values.push_back(static_cast<double>(matrix(r, c)));
    take(name, std::move(tensor));
  }
  bool wants() const { return take_ != nullptr; }
  void take(const std::string& name, RecordedTensor tensor) const {
    if (wants()) take_(name, std::move(tensor));
  }

 private:
  Take take_;
};

/// A stored tensor as a matrix of its last axis, or with `rows` rows.
template <class T>
Matrix<T> matrix_of(const checkpoints::StoredTensor& tensor, Index rows) {
  Matrix<T> matrix(rows, rows == 0 ? 0 : tensor.size() / rows);
  tensor.copy_to(matrix.data());
  return matrix;
}
template <class T>
Matrix<T> matrix_of(const checkpoints::StoredTensor& tensor) {
  const Index columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  return matrix_of<T>(tensor, columns == 0 ? 0 : tensor.size() / columns);
}

/// Images cut into windows: the released vision models keep their tokens window by window, these
/// programs row by row, as the library takes them.
struct Windows {
  Index rows = 0;  // tokens of the grid
  Index columns = 0;
  Index height = 0;  // tokens of a window
  Index width = 0;

  Index tokens() const { return rows * columns; }
  Index window_tokens() const { return height * width; }
  Index count() const { return tokens() / window_tokens(); }
  layers::Grid grid() const { return {{1, rows, columns}}; }

  /// Where the t-th token in the order of windows lies row by row.
  Index raster(Index t) const {
    const Index window = t / window_tokens();
    const Index inside = t % window_tokens();
    const Index across = columns / width;
    return (window / across * height + inside / width) * columns + window % across * width +
           inside % width;
  }
  /// Rows of every image, from row by row to window by window.
  template <class M>
  auto by_window(const M& tokens_by_row) const {
    Matrix<typename M::Scalar> ordered(tokens_by_row.rows(), tokens_by_row.cols());
    for (Index r = 0; r < ordered.rows(); ++r)
      ordered.row(r) = tokens_by_row.row(r / tokens() * tokens() + raster(r % tokens()));
    return ordered;
  }
  /// And back.
  template <class M>
  auto by_row(const M& tokens_by_window) const {
    Matrix<typename M::Scalar> ordered(tokens_by_window.rows(), tokens_by_window.cols());
    for (Index r = 0; r < ordered.rows(); ++r)
      ordered.row(r / tokens() * tokens() + raster(r % tokens())) = tokens_by_window.row(r);
    return ordered;
  }
};

/// Tokens of images as channels of images: [batch * tokens, channels] to [batch, channels *
/// tokens].
template <class T>
Matrix<T> channels_first(const Matrix<T>& tokens, Index batch) {
  const Index count = tokens.rows() / batch;
  Matrix<T> images(batch, tokens.cols() * count);
  for (Index r = 0; r < tokens.rows(); ++r)
    for (Index c = 0; c < tokens.cols(); ++c)
      images(r / count, c * count + r % count) = tokens(r, c);
  return images;
}

}  // namespace released
