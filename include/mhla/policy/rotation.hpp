// SPDX-License-Identifier: MIT
// Rotary position embedding applied after phi, to the numerator's features only: the normalizer
// uses unrotated ones (released video and language-model code). Features are turned in pairs by
// angle position * frequency.
#pragma once

#include <cmath>
#include <concepts>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

/// Which two features make pair c of feature_dim / 2: c * step and c * step + gap.
struct RotationPairs {
  Index step;
  Index gap;
};

/// R, or its inverse, which is its adjoint.
enum class Turn { forward, back };

/// No rotation; costs nothing.
struct NoRotation {};

/// Pairs (c, c + D/2), angle t theta^(-2c/D): GPT-NeoX's order. One-dimensional blocks only.
struct HalfSplitRotary {
  double theta = 10000;

  MHLA_HOST_DEVICE constexpr RotationPairs pairs(Index feature_dim) const {
    return {1, feature_dim / 2};
  }
  /// How many of the D/2 pairs follow axis `axis` of `rank`; axes own consecutive pairs.
  MHLA_HOST_DEVICE constexpr Index axis_pairs(int /*axis*/, int /*rank*/, Index total_pairs) const {
    return total_pairs;
  }
  /// Radians per position of pair `j` of an axis' own `count`.
  double frequency(Index j, Index count) const {
    return std::pow(theta, -static_cast<double>(j) / static_cast<double>(count));
  }
};

/// Interleaved pairs (2c, 2c + 1) shared out over the grid's axes: in 1-D all, in 2-D
/// [c - floor(c/2), floor(c/2)], in 3-D [c - 2 floor(c/3), floor(c/3), floor(c/3)] of c = D/2
/// pairs; angle position_a theta^(-j / pairs_a), j counting an axis' own pairs: Wan's.
struct AxialRotary {
  double theta = 10000;

  MHLA_HOST_DEVICE constexpr RotationPairs pairs(Index /*feature_dim*/) const { return {2, 1}; }
  MHLA_HOST_DEVICE constexpr Index axis_pairs(int axis, int rank, Index total_pairs) const {
    const Index share = total_pairs / rank;
    return axis == 0 ? total_pairs - (rank - 1) * share : share;
  }
  double frequency(Index j, Index count) const {
    return std::pow(theta, -static_cast<double>(j) / static_cast<double>(count));
  }
};

/// What a rotation other than NoRotation provides; a user's own type may.
template <class R>
concept RotaryEmbedding = std::is_trivially_copyable_v<R> &&
    requires(const R& rotation, int axis, Index count) {
  { rotation.pairs(count) } -> std::same_as<RotationPairs>;
  { rotation.axis_pairs(axis, axis, count) } -> std::same_as<Index>;
  { rotation.frequency(count, count) } -> std::same_as<double>;
};

template <class R>
concept Rotation = std::same_as<R, NoRotation> || RotaryEmbedding<R>;

MHLA_NAMESPACE_END
