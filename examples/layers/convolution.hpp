// SPDX-License-Identifier: MIT
// Convolutions over grids of tokens, in raster order: depthwise ones (positional encodings, short
// causal convolutions) and the one that cuts an image into patches.
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "linear.hpp"
#include "parameters.hpp"

namespace layers {

/// A grid of tokens: frames, rows, columns; leading extents may be 1.
struct Grid {
  std::array<Index, 3> extent = {1, 1, 1};

  Index tokens() const { return extent[0] * extent[1] * extent[2]; }
};

/// Each channel by itself: y_t = b + sum_o w_o x_(t + o - before), zero outside of the grid, which
/// keeps its size. weight [channels, 1, kernel...].
class DepthwiseConvolution {
 public:
  /// Over `kernel.size()` axes, the last ones of the grid, centered.
  DepthwiseConvolution(ParameterList& list, const std::string& name, Index channels,
                       const std::vector<Index>& kernel, Bias bias)
      : has_bias_(bias == Bias::one) {
    std::vector<Index> shape = {channels, 1};
    double taps = 1;
    for (std::size_t axis = 0; axis < kernel.size(); ++axis) {
      const std::size_t of_grid = 3 - kernel.size() + axis;
      kernel_[of_grid] = kernel[axis];
      before_[of_grid] = kernel[axis] / 2;
      shape.push_back(kernel[axis]);
      taps *= static_cast<double>(kernel[axis]);
    }
    weight_ = list.add(name + ".weight", shape, 0, 1 / std::sqrt(taps));
    if (has_bias_) bias_ = list.add(name + ".bias", {channels}, 0, 0);
  }
  /// Over a sequence, from earlier tokens alone.
  static DepthwiseConvolution causal(ParameterList& list, const std::string& name, Index channels,
                                     Index taps) {
    DepthwiseConvolution convolution(list, name, channels, {taps}, Bias::none);
    convolution.before_[2] = taps - 1;
    return convolution;
  }

  template <class T>
  void forward(const Values<T>& values, const Grid& grid, const Matrix<T>& x, Matrix<T>& y) const {
    const Matrix<T> taps = weight_.in(values).transpose();
    y.setZero(x.rows(), x.cols());
    if (has_bias_) y.array().rowwise() += bias_.row(values);
    for_each_pair(grid, x.rows(), [&](Index to, Index from, Index tap) {
      y.row(to).array() += x.row(from).array() * taps.row(tap).array();
    });
  }
  template <class T>
  void backward(const Values<T>& values, const Grid& grid, const Matrix<T>& x, const Matrix<T>& dy,
                Matrix<T>& dx, Values<T>& gradient) const {
    const Matrix<T> taps = weight_.in(values).transpose();
    Matrix<T> d_taps = Matrix<T>::Zero(taps.rows(), taps.cols());
    dx.setZero(x.rows(), x.cols());
    for_each_pair(grid, x.rows(), [&](Index to, Index from, Index tap) {
      dx.row(from).array() += dy.row(to).array() * taps.row(tap).array();
      d_taps.row(tap).array() += dy.row(to).array() * x.row(from).array();
    });
    weight_.in(gradient) = d_taps.transpose();
    if (has_bias_) bias_.row(gradient) = dy.array().colwise().sum();
  }

 private:
  /// f(row of the result, row of the operand, tap) for every pair inside the grid of each of the
  /// `rows` / tokens batch items.
  template <class F>
  void for_each_pair(const Grid& grid, Index rows, const F& f) const {
    const auto [frames, height, width] = grid.extent;
    for (Index first = 0; first < rows; first += grid.tokens())
      for (Index tap = 0; tap < kernel_[0] * kernel_[1] * kernel_[2]; ++tap) {
        const Index by[3] = {tap / (kernel_[1] * kernel_[2]) - before_[0],
                             tap / kernel_[2] % kernel_[1] - before_[1],
                             tap % kernel_[2] - before_[2]};
        for (Index z = first_of(by[0]); z < end_of(frames, by[0]); ++z)
          for (Index y = first_of(by[1]); y < end_of(height, by[1]); ++y)
            for (Index x = first_of(by[2]); x < end_of(width, by[2]); ++x)
              f(first + (z * height + y) * width + x,
                first + ((z + by[0]) * height + y + by[1]) * width + x + by[2], tap);
      }
  }
  static Index first_of(Index by) { return by < 0 ? -by : 0; }
  static Index end_of(Index extent, Index by) { return by > 0 ? extent - by : extent; }

  std::array<Index, 3> kernel_ = {1, 1, 1};
  std::array<Index, 3> before_ = {0, 0, 0};
  bool has_bias_;
  Parameter weight_;
  Parameter bias_;
};

/// An image's size: channels x height x width.
struct ImageShape {
  Index channels = 0;
  Index height = 0;
  Index width = 0;

  Index size() const { return channels * height * width; }
};

/// Images, one a row, [batch, channels * height * width], cut into windows of patch x patch pixels
/// without overlap, [batch * windows, channels * patch * patch], in raster order.
template <class T>
void cut_patches(const Matrix<T>& images, const ImageShape& shape, Index patch,
                 Matrix<T>& windows) {
  const Index rows = shape.height / patch;
  const Index columns = shape.width / patch;
  windows.resize(images.rows() * rows * columns, shape.channels * patch * patch);
  for (Index b = 0; b < images.rows(); ++b)
    for (Index c = 0; c < shape.channels; ++c)
      for (Index y = 0; y < rows * patch; ++y)
        for (Index x = 0; x < columns * patch; ++x)
          windows((b * rows + y / patch) * columns + x / patch,
                  (c * patch + y % patch) * patch + x % patch) =
              images(b, (c * shape.height + y) * shape.width + x);
}
/// Its adjoint, and its inverse.
template <class T>
void join_patches(const Matrix<T>& windows, const ImageShape& shape, Index patch,
                  Matrix<T>& images) {
  const Index rows = shape.height / patch;
  const Index columns = shape.width / patch;
  images.setZero(windows.rows() / (rows * columns), shape.size());
  for (Index b = 0; b < images.rows(); ++b)
    for (Index c = 0; c < shape.channels; ++c)
      for (Index y = 0; y < rows * patch; ++y)
        for (Index x = 0; x < columns * patch; ++x)
          images(b, (c * shape.height + y) * shape.width + x) =
              windows((b * rows + y / patch) * columns + x / patch,
                      (c * patch + y % patch) * patch + x % patch);
}

/// Images to tokens: a convolution whose windows do not overlap. weight [width, channels, patch,
/// patch].
class PatchEmbedding {
 public:
  PatchEmbedding(ParameterList& list, const std::string& name, const ImageShape& shape, Index patch,
                 Index width, Bias bias = Bias::one)
      : shape_(shape),
        patch_(patch),
        project_(list, name, {width, shape.channels, patch, patch}, bias) {}

  /// `windows` is kept for the backward pass.
  template <class T>
  void forward(const Values<T>& values, const Matrix<T>& images, Matrix<T>& tokens,
               Matrix<T>& windows) const {
    cut_patches(images, shape_, patch_, windows);
    project_.forward(values, windows, tokens);
  }
  template <class T>
  void backward(const Values<T>& values, const Matrix<T>& windows, const Matrix<T>& d_tokens,
                Matrix<T>& d_images, Values<T>& gradient) const {
    Matrix<T> d_windows;
    project_.backward(values, windows, d_tokens, d_windows, gradient);
    join_patches(d_windows, shape_, patch_, d_images);
  }

 private:
  ImageShape shape_;
  Index patch_;
  Linear project_;
};

}  // namespace layers
