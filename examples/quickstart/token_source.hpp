// SPDX-License-Identifier: MIT
// Tokens from a real file: structured data, not white noise. A binary PPM or PGM image is cut into
// patches; any other file is a text, a token for each byte.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mhla/core/index.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <stdexcept>
#include <string>

namespace quickstart {

using mhla::Index;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A matrix of normal numbers, the same on every machine.
inline Matrix random_matrix(std::uint64_t seed, Index rows, Index columns) {
  Matrix matrix(rows, columns);
  mhla::testing::fill_random(mhla::testing::Normal{}, seed,
                             mhla::make_view(matrix.data(), rows, columns));
  return matrix;
}

/// The pixels of a binary PPM (P6) or PGM (P5) file, each in [0, 1].
class Image {
 public:
  Index rows = 0;
  Index columns = 0;
  Index channels = 0;

  static bool is_image(const std::string& bytes) {
    return bytes.size() > 2 && bytes[0] == 'P' && (bytes[1] == '5' || bytes[1] == '6') &&
           std::isspace(static_cast<unsigned char>(bytes[2]));
  }

  Image() = default;
  explicit Image(const std::string& bytes) : channels(bytes[1] == '6' ? 3 : 1) {
    std::size_t at = 2;
    columns = header_number(bytes, at);
    rows = header_number(bytes, at);
    const Index white = header_number(bytes, at);
    if (white > 65535) throw std::runtime_error("the image has a maximum above 65535");
    ++at;  // the one white space before the pixels
    sample_bytes_ = white > 255 ? 2 : 1;
    white_ = static_cast<float>(white);
    // Of at most 9 digits each, so that the product fits.
    const Index samples = rows * columns * channels;
    if (at > bytes.size() || static_cast<Index>(bytes.size() - at) < samples * sample_bytes_)
      throw std::runtime_error("the image ends before its last pixel");
    samples_ = bytes.substr(at);
  }

  float operator()(Index row, Index column, Index channel) const {
    const auto at =
        static_cast<std::size_t>(((row * columns + column) * channels + channel) * sample_bytes_);
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(samples_[i]); };
    const int value = sample_bytes_ == 1 ? byte(at) : byte(at) * 256 + byte(at + 1);
    return static_cast<float>(value) / white_;
  }

 private:
  static Index header_number(const std::string& bytes, std::size_t& at) {
    const auto is = [&](int (*kind)(int)) {
      return at < bytes.size() && kind(static_cast<unsigned char>(bytes[at])) != 0;
    };
    while (is(std::isspace) || (at < bytes.size() && bytes[at] == '#')) {
      if (bytes[at] == '#') at = std::min(bytes.find('\n', at), bytes.size() - 1);
      ++at;
    }
    Index number = 0;
    int digits = 0;
    for (; is(std::isdigit); ++at, ++digits) number = 10 * number + (bytes[at] - '0');
    if (number == 0 || digits > 9) throw std::runtime_error("the image has a broken header");
    return number;
  }

  std::string samples_;
  Index sample_bytes_ = 1;
  float white_ = 255;
};

/// Embeds the tokens of one file.
class TokenSource {
 public:
  static constexpr Index width = 128;  ///< features of an embedded token

  explicit TokenSource(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    text_.assign(std::istreambuf_iterator<char>(stream), {});
    if (text_.empty()) throw std::runtime_error(file.string() + " cannot be read, or is empty");
    if (Image::is_image(text_)) image_ = Image(text_);
    description_ = file.filename().string() + ", ";
    description_ += image_.rows == 0 ? "a text of " + std::to_string(text_.size()) + " bytes"
                                     : "an image of " + std::to_string(image_.columns) + " x " +
                                           std::to_string(image_.rows) + " pixels";
  }

  const std::string& description() const { return description_; }

  /// x [tokens of the grid, width]: every row has mean square 1.
  Matrix embed(const mhla::Grid& grid) const {
    Matrix x = image_.rows == 0 ? embed_text(grid.num_tokens()) : embed_image(grid);
    for (Index t = 0; t < x.rows(); ++t)
      x.row(t) *= std::sqrt(static_cast<float>(width)) / std::max(x.row(t).norm(), 1e-6f);
    return x;
  }

 private:
  // Each byte has a row of a fixed table; a token remembers the bytes before it, fading. The text
  // begins again where it is too short.
  Matrix embed_text(Index tokens) const {
    const Matrix table = random_matrix(1, 256, width);
    Matrix x(tokens, width);
    for (Index t = 0; t < tokens; ++t) {
      const auto at = static_cast<std::size_t>(t) % text_.size();
      x.row(t) = table.row(static_cast<unsigned char>(text_[at]));
      if (t > 0) x.row(t) += 0.7f * x.row(t - 1);
    }
    return x;
  }

  // The pixels of a patch, sampled 4 x 4, times a fixed table. The frames of a video are the image
  // seen by a camera that moves to the right; a sequence is the image's patches row by row.
  Matrix embed_image(const mhla::Grid& grid) const {
    std::array<Index, 3> extent{grid.extent[0], grid.extent[1], grid.extent[2]};
    if (extent[0] == 1 && extent[1] == 1) {
      extent[1] = std::max<Index>(1, static_cast<Index>(std::sqrt(static_cast<double>(extent[2]))));
      extent[2] = mhla::ceil_div(extent[2], extent[1]);
    }
    constexpr Index side = 4;
    const Matrix table = random_matrix(1, side * side * image_.channels, width);
    const Index view = extent[0] == 1 ? image_.columns : std::max<Index>(1, image_.columns * 3 / 4);
    Matrix x(grid.num_tokens(), width);
    Eigen::RowVectorXf patch(table.rows());
    for (Index t = 0; t < x.rows(); ++t) {
      const Index frame = t / (extent[1] * extent[2]);
      const Index row = t / extent[2] % extent[1];
      const Index column = t % extent[2];
      const Index from =
          extent[0] == 1 ? 0 : (image_.columns - view) * frame / std::max<Index>(1, extent[0] - 1);
      Index feature = 0;
      for (Index r = 0; r < side; ++r)
        for (Index c = 0; c < side; ++c)
          for (Index channel = 0; channel < image_.channels; ++channel)
            patch(feature++) =
                image_((row * side + r) * image_.rows / (extent[1] * side),
                       from + (column * side + c) * view / (extent[2] * side), channel) -
                0.5f;
      x.row(t) = patch * table;
    }
    return x;
  }

  std::string text_;
  Image image_;
  std::string description_;
};

}  // namespace quickstart
