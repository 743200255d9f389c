// SPDX-License-Identifier: MIT
// Images of the user's own: IDX pairs (MNIST's format: images, labels) and CIFAR-10's binaries.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "../training/command_line.hpp"
#include "images.hpp"

namespace train_vit {

using training::InputError;

/// All images of some files, in memory; the last tenth is kept for validation.
class ImageFiles : public Images {
 public:
  ImageShape shape() const override { return shape_; }
  Index classes() const override { return classes_; }
  Index validation() const override { return images() - training_images(); }

  int image(Part part, Index number, float* pixels) const override {
    const Index at = part == Part::validation
                         ? training_images() + number
                         : mhla::testing::random_index(seed_, static_cast<std::uint64_t>(number),
                                                       training_images());
    const std::uint8_t* const bytes = pixels_.data() + at * shape_.size();
    for (Index i = 0; i < shape_.size(); ++i)
      pixels[i] = (static_cast<float>(bytes[i]) - mean_) / deviation_;
    return labels_[static_cast<std::size_t>(at)];
  }

  /// IDX: 4 bytes of magic (0x00000803, or 0x00000801 for labels), big-endian extents, bytes.
  static ImageFiles idx(const std::string& images, const std::string& labels, std::uint64_t seed) {
    ImageFiles files(seed);
    const std::vector<std::uint8_t> image_bytes = contents(images);
    const std::vector<std::uint8_t> label_bytes = contents(labels);
    const std::vector<Index> extents = idx_extents(image_bytes, 3, images);
    const std::vector<Index> label_extents = idx_extents(label_bytes, 1, labels);
    if (extents[0] != label_extents[0])
      throw InputError(images + " has " + std::to_string(extents[0]) + " images, but " + labels +
                       " has " + std::to_string(label_extents[0]) + " labels");
    files.shape_ = {1, extents[1], extents[2]};
    files.pixels_.assign(image_bytes.begin() + 16, image_bytes.end());
    files.labels_.assign(label_bytes.begin() + 8, label_bytes.end());
    files.summarize(images);
    return files;
  }

  /// CIFAR-10's: a byte of label and 3 x 32 x 32 bytes, for each image.
  static ImageFiles cifar(const std::vector<std::string>& names, std::uint64_t seed) {
    ImageFiles files(seed);
    files.shape_ = {3, 32, 32};
    const auto record = static_cast<std::size_t>(1 + files.shape_.size());
    for (const std::string& name : names) {
      const std::vector<std::uint8_t> bytes = contents(name);
      if (bytes.empty() || bytes.size() % record != 0)
        throw InputError(name + " does not consist of records of 3,073 bytes, as CIFAR-10's");
      for (auto at = bytes.begin(); at != bytes.end(); at += static_cast<std::ptrdiff_t>(record)) {
        files.labels_.push_back(*at);
        files.pixels_.insert(files.pixels_.end(), at + 1, at + static_cast<std::ptrdiff_t>(record));
      }
    }
    files.summarize(names.front());
    return files;
  }

 private:
  explicit ImageFiles(std::uint64_t seed) : seed_(seed) {}

  Index images() const { return static_cast<Index>(labels_.size()); }
  Index training_images() const { return images() - images() / 10; }

  static std::vector<std::uint8_t> contents(const std::string& name) {
    std::ifstream stream(name, std::ios::binary);
    std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(stream), {}};
    if (!stream || bytes.empty()) throw InputError(name + " cannot be read, or is empty");
    return bytes;
  }

  static std::vector<Index> idx_extents(const std::vector<std::uint8_t>& bytes, std::size_t axes,
                                        const std::string& name) {
    const auto word = [&](std::size_t at) {
      Index value = 0;
      for (std::size_t i = 0; i < 4; ++i) value = value * 256 + bytes[4 * at + i];
      return value;
    };
    const std::size_t header = 4 + 4 * axes;
    if (bytes.size() < header || word(0) != 0x800 + static_cast<Index>(axes))
      throw InputError(name + " is not an IDX file of bytes with " + std::to_string(axes) +
                       (axes == 1 ? " axis" : " axes"));
    std::vector<Index> extents;
    // Never more than there are bytes, so that no product of three overflows.
    Index left = static_cast<Index>(bytes.size() - header);
    for (std::size_t axis = 0; axis < axes; ++axis) {
      extents.push_back(word(1 + axis));
      if (extents.back() == 0 || left % extents.back() != 0)
        throw InputError(name + " is cut off, or its extents are wrong");
      left /= extents.back();
    }
    if (left != 1) throw InputError(name + " is cut off, or its extents are wrong");
    return extents;
  }

  void summarize(const std::string& name) {
    if (images() < 10) throw InputError(name + " has fewer than 10 images");
    classes_ = 1 + *std::max_element(labels_.begin(), labels_.end());
    double sum = 0, squares = 0;
    for (const std::uint8_t pixel : pixels_) {
      sum += pixel;
      squares += static_cast<double>(pixel) * pixel;
    }
    const double mean = sum / static_cast<double>(pixels_.size());
    mean_ = static_cast<float>(mean);
    deviation_ = static_cast<float>(
        std::sqrt(std::max(1.0, squares / static_cast<double>(pixels_.size()) - mean * mean)));
  }

  ImageShape shape_;
  Index classes_ = 0;
  std::vector<std::uint8_t> pixels_;
  std::vector<std::uint8_t> labels_;
  float mean_ = 0;
  float deviation_ = 1;
  std::uint64_t seed_;
};

}  // namespace train_vit
