// SPDX-License-Identifier: MIT
// Examples that a program makes up: their parts, and random numbers that are the same on every
// machine.
#pragma once

#include <cstdint>
#include <mhla/testing/random_tensor.hpp>

namespace training {

using mhla::Index;

enum class Part { training, validation };

/// Random numbers one after another.
class Draws {
 public:
  explicit Draws(std::uint64_t stream) : stream_(stream) {}
  /// Those of example `number`; the parts have nothing in common.
  Draws(std::uint64_t seed, Part part, Index number)
      : Draws(mhla::testing::random_bits(seed + (part == Part::training ? 0 : 1),
                                         static_cast<std::uint64_t>(number))) {}

  /// An integer in [0, bound).
  Index below(Index bound) { return mhla::testing::random_index(stream_, next_++, bound); }
  /// Of mean 0 and variance 1.
  float normal() {
    return static_cast<float>(mhla::testing::Normal{}(stream_ + 1, next_normal_++));
  }

 private:
  std::uint64_t stream_;
  std::uint64_t next_ = 0;
  std::uint64_t next_normal_ = 0;
};

}  // namespace training
