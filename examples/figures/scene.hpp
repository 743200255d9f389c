// SPDX-License-Identifier: MIT
// A small image whose tokens mean something: things lie on a ground, and tokens of one thing
// resemble each other, as do neighbours.
#pragma once

#include <array>
#include <mhla/core/index.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/testing/host_tensor.hpp>

namespace figures {

using mhla::Index;

/// side x side tokens in raster order.
class Scene {
 public:
  enum Thing { ground, disc, band };

  explicit Scene(Index side) : side_(side) {}

  Index side() const { return side_; }
  Index tokens() const { return side_ * side_; }

  /// The token at these fractions of the height and the width, both below 1.
  Index token_at(double row, double column) const {
    const auto along = [&](double at) {
      return static_cast<Index>(at * static_cast<double>(side_));
    };
    return along(row) * side_ + along(column);
  }

  /// Cut into count x count blocks.
  mhla::Blocks2D blocks(Index count) const {
    return {.grid = {side_, side_}, .block = {side_ / count, side_ / count}};
  }

  /// Two discs, at the upper left and the lower right, and a band across the lower left.
  Thing thing(Index token) const;

  /// q = k [1, 1, tokens, dim], one projection of the tokens, so that similar ones attract each
  /// other. Elements have mean square 1, as after a norm.
  mhla::testing::HostTensor<double, 4> queries(Index key_dim) const;

 private:
  /// Row and column of a token's centre, between 0 and 1.
  std::array<double, 2> place(Index token) const {
    const auto centre = [&](Index i) {
      return (static_cast<double>(i) + 0.5) / static_cast<double>(side_);
    };
    return {centre(token / side_), centre(token % side_)};
  }

  Index side_;
};

}  // namespace figures
