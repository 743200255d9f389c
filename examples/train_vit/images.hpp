// SPDX-License-Identifier: MIT
// Labelled images, and those that the program draws itself: what decides their class is a relation
// between shapes over a distance, which no part of the image knows alone.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "../layers/convolution.hpp"
#include "../training/draws.hpp"

namespace train_vit {

using layers::ImageShape;
using layers::Index;
using training::Part;

/// Numbered images of two parts; those of training never end.
class Images {
 public:
  virtual ~Images() = default;
  virtual ImageShape shape() const = 0;
  virtual Index classes() const = 0;
  /// How many there are to judge by.
  virtual Index validation() const = 0;
  /// Writes channels x height x width pixels, of about mean 0 and variance 1, and returns the
  /// class.
  virtual int image(Part part, Index number, float* pixels) const = 0;
};

/// A marker among shapes in noise. The class is the kind of the shape nearest to the marker.
class DrawnShapes : public Images {
 public:
  static constexpr Index cells = 8;  // along a side
  static constexpr Index cell = 4;   // pixels of a cell's side
  static constexpr Index side = cells * cell;
  static constexpr Index others = 6;  // shapes that lie farther off

  explicit DrawnShapes(std::uint64_t seed) : seed_(seed) {}

  ImageShape shape() const override { return {1, side, side}; }
  Index classes() const override { return kinds; }
  Index validation() const override { return 1024; }

  int image(Part part, Index number, float* pixels) const override {
    training::Draws draws(seed_, part, number);
    for (Index i = 0; i < side * side; ++i) pixels[i] = 0.3f * draws.normal();
    const Cell marker = cell_of(draws);
    Cell nearest = cell_of(draws);
    while (squared_distance(marker, nearest) < 4 || squared_distance(marker, nearest) > 10)
      nearest = cell_of(draws);
    const Index away = 2 * squared_distance(marker, nearest);
    const int kind = static_cast<int>(draws.below(kinds));
    draw(patterns[kinds], marker, pixels);
    draw(patterns[kind], nearest, pixels);
    for (Index i = 0; i < others; ++i) {
      Cell other = cell_of(draws);
      while (squared_distance(marker, other) < away) other = cell_of(draws);
      draw(patterns[draws.below(kinds)], other, pixels);
    }
    return kind;
  }

 private:
  struct Cell {
    Index x, y;
  };

  // 4 x 4 pixels of each kind, row by row from the highest bit; the last one is the marker.
  static constexpr int kinds = 8;
  static constexpr std::uint16_t patterns[kinds + 1] = {0xf99f, 0x9669, 0xcccc, 0xff00, 0x8421,
                                                        0x1248, 0xa5a5, 0xf888, 0x6ff6};

  static Cell cell_of(training::Draws& draws) {
    const Index x = draws.below(cells);
    return {x, draws.below(cells)};
  }
  static Index squared_distance(Cell a, Cell b) {
    return (a.x - b.x) * (a.x - b.x) + (a.y - b.y) * (a.y - b.y);
  }
  static void draw(std::uint16_t pattern, Cell at, float* pixels) {
    for (Index y = 0; y < cell; ++y)
      for (Index x = 0; x < cell; ++x)
        if ((pattern >> (cell * cell - 1 - (y * cell + x)) & 1) != 0)
          pixels[(at.y * cell + y) * side + at.x * cell + x] = 2;
  }

  std::uint64_t seed_;
};

}  // namespace train_vit
