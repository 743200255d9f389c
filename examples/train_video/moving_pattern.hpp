// SPDX-License-Identifier: MIT
// Videos of a pattern that moves over a torus, most of whose tokens are masked.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "../training/token_sequences.hpp"

namespace train_video {

using training::Index;
using training::Part;

/// The sizes of a video, in tokens.
struct VideoShape {
  Index frames = 8;
  Index height = 8;
  Index width = 8;
  Index masked = 384;

  Index tokens() const { return frames * height * width; }
};

/// A token has the colour of the nearest of a few centers. They all move with one velocity, at most
/// one token a frame along each axis, and what leaves at one side comes back at the other.
class MovingPattern : public training::TokenSequences {
 public:
  static constexpr int colors = 8;  ///< symbols; the next one stands where a color is asked for
  static constexpr int mask = colors;
  static constexpr std::size_t centers = 5;

  MovingPattern(const VideoShape& shape, std::uint64_t seed) : shape_(shape), seed_(seed) {}

  Index tokens() const override { return shape_.tokens(); }
  Index symbols() const override { return colors + 1; }
  Index classes() const override { return colors; }
  Index predictions() const override { return shape_.masked; }
  Index validation() const override { return 128; }

  void append(Part part, Index number, training::TokenBatch& batch) const override {
    training::Draws draws(seed_, part, number);
    std::vector<int> video = drawn(draws);
    // Of the tokens in a random order, the first.
    std::vector<std::size_t> order(video.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = 0; i < static_cast<std::size_t>(shape_.masked); ++i) {
      const Index left = static_cast<Index>(order.size() - i);
      std::swap(order[i], order[i + static_cast<std::size_t>(draws.below(left))]);
      int& symbol = video[order[i]];
      batch.predictions.push_back({batch.tokens() + static_cast<Index>(order[i]), symbol});
      symbol = mask;
    }
    batch.symbols.resize(1);
    batch.symbols[0].insert(batch.symbols[0].end(), video.begin(), video.end());
  }

 private:
  struct Center {
    Index y, x;
    int color;
  };

  /// Frame by frame, row by row.
  std::vector<int> drawn(training::Draws& draws) const {
    std::array<Center, centers> all;
    for (Center& center : all) {
      center.y = draws.below(shape_.height);
      center.x = draws.below(shape_.width);
      center.color = static_cast<int>(draws.below(colors));
    }
    const Index down = draws.below(3) - 1;
    const Index right = draws.below(3) - 1;
    std::vector<int> video;
    for (Index frame = 0; frame < shape_.frames; ++frame)
      for (Index y = 0; y < shape_.height; ++y)
        for (Index x = 0; x < shape_.width; ++x)
          video.push_back(color_at(all, y - frame * down, x - frame * right));
    return video;
  }

  int color_at(const std::array<Center, centers>& all, Index y, Index x) const {
    const auto squared_distance = [&](const Center& center) {
      const Index dy = around(y - center.y, shape_.height);
      const Index dx = around(x - center.x, shape_.width);
      return dy * dy + dx * dx;
    };
    return std::min_element(all.begin(), all.end(),
                            [&](const Center& a, const Center& b) {
                              return squared_distance(a) < squared_distance(b);
                            })
        ->color;
  }
  /// How far apart, on a circle of `size`.
  static Index around(Index difference, Index size) {
    const Index ahead = (difference % size + size) % size;
    return std::min(ahead, size - ahead);
  }

  VideoShape shape_;
  std::uint64_t seed_;
};

}  // namespace train_video
