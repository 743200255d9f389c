// SPDX-License-Identifier: MIT
/// \defgroup rotations Rotations
/// \ingroup variant
/// Rotary position embedding (RoPE) after phi, of the numerator's features only: the normalizer
/// uses unrotated ones (released video and language-model code). Features are rotated in pairs by
/// the angle position * frequency. Angles are computed in double.
#pragma once

#include <mhla/core/shape.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup rotations
/// \{

/// Which two features form pair c of feature_dim / 2: c * step and c * step + gap.
struct RotationPairs {
  Index step;  ///< from pair to pair
  Index gap;   ///< between the two
};

/// \cond INTERNAL
// R, or its inverse, which is its adjoint.
enum class Turn { forward, back };
/// \endcond

/// No rotation, at no cost.
struct NoRotation {};

/// Pairs (c, c + D/2), angle t theta^(-2c/D): GPT-NeoX's order. Blocks1D only; D is even.
struct HalfSplitRotary {
  double theta = 10000;  ///< base of the frequencies, positive

  /// \private
  void require_valid() const { require_positive("rotation.theta", theta); }

  /// {1, D/2}
  MHLA_HOST_DEVICE constexpr RotationPairs pairs(Index feature_dim) const {
    return {1, feature_dim / 2};
  }
  /// How many of the D/2 pairs belong to axis `axis` of `rank`; axes own consecutive pairs.
  MHLA_HOST_DEVICE constexpr Index axis_pairs(int /*axis*/, int /*rank*/, Index total_pairs) const {
    return total_pairs;
  }
  /// Radians per position of pair `j` of an axis's `count` pairs.
  double frequency(Index j, Index count) const {
    return std::pow(theta, -static_cast<double>(j) / static_cast<double>(count));
  }
};

/// Interleaved pairs (2c, 2c + 1), divided among the grid's axes: in 1-D all, in 2-D
/// [c - floor(c/2), floor(c/2)], in 3-D [c - 2 floor(c/3), floor(c/3), floor(c/3)] of c = D/2
/// pairs; angle position_a theta^(-j / pairs_a), j counting the axis's own pairs: Wan's. D is even.
struct AxialRotary {
  double theta = 10000;  ///< base of the frequencies, positive

  /// \private
  void require_valid() const { require_positive("rotation.theta", theta); }

  /// {2, 1}
  MHLA_HOST_DEVICE constexpr RotationPairs pairs(Index /*feature_dim*/) const { return {2, 1}; }
  /// How many of the D/2 pairs belong to axis `axis` of `rank`; axes own consecutive pairs.
  MHLA_HOST_DEVICE constexpr Index axis_pairs(int axis, int rank, Index total_pairs) const {
    const Index share = total_pairs / rank;
    return axis == 0 ? total_pairs - (rank - 1) * share : share;
  }
  /// Radians per position of pair `j` of an axis's `count` pairs.
  double frequency(Index j, Index count) const {
    return std::pow(theta, -static_cast<double>(j) / static_cast<double>(count));
  }
};

/// A rotation other than NoRotation, or a type of yours: see HalfSplitRotary for its members.
template <class R>
concept RotaryEmbedding = std::is_trivially_copyable_v<R> &&
    requires(const R& rotation, int axis, Index count) {
  { rotation.pairs(count) } -> std::same_as<RotationPairs>;
  { rotation.axis_pairs(axis, axis, count) } -> std::same_as<Index>;
  { rotation.frequency(count, count) } -> std::same_as<double>;
};

/// NoRotation or a RotaryEmbedding.
template <class R>
concept Rotation = std::same_as<R, NoRotation> || RotaryEmbedding<R>;

/// \}

MHLA_NAMESPACE_END
