// SPDX-License-Identifier: MIT
// From the words of a case to the type of its variant: every bidirectional, causal and block-causal
// Attention<...> that the library's own policies make.
#pragma once

#include <cstddef>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/rotation.hpp>
#include <mhla/policy/variant.hpp>
#include <string>
#include <type_traits>

#include "attention_case.hpp"

namespace replay {

/// The library's feature map that a case names, as one type: a variant is then compiled once and
/// not once per map. (A user's own row-wise map looks like this.)
template <class T>
struct ChosenMap {
  FeatureMapName name;
  double epsilon;                                 ///< of Relu and SquaredRelu
  Index nu;                                       ///< of Dpfp
  mhla::TensorView<const T, 2> favor_projection;  ///< [features, key_dim]

  /// Calls f with the map itself.
  template <class F>
  auto with_map(const F& f) const {
    return with_feature_map(name, epsilon, nu, favor_projection, f);
  }

  Index feature_dim(Index key_dim) const {
    return with_map([&](const auto& map) { return mhla::feature_dim(map, key_dim); });
  }
  template <class U>
  void value(mhla::Span<const U> in, mhla::Span<U> out) const {
    with_map([&](const auto& map) {
      if constexpr (mhla::RowwiseFeatureMap<std::remove_cvref_t<decltype(map)>>) {
        map.value(in, out);
      } else {
        for (Index c = 0; c < in.size; ++c) out[c] = map.value(in[c]);
      }
    });
  }
  template <class U>
  void vjp(mhla::Span<const U> in, mhla::Span<const U> grad, mhla::Span<U> out) const {
    with_map([&](const auto& map) {
      if constexpr (mhla::RowwiseFeatureMap<std::remove_cvref_t<decltype(map)>>) {
        map.vjp(in, grad, out);
      } else {
        for (Index c = 0; c < in.size; ++c) out[c] = map.derivative(in[c]) * grad[c];
      }
    });
  }
};

template <class F>
void with_causality(const AttentionCase& c, F&& f) {
  switch (c.causality) {
    case CausalityName::bidirectional:
      return f(mhla::Bidirectional{});
    case CausalityName::causal:
      return f(mhla::Causal{});
    case CausalityName::block_causal:
      return f(mhla::BlockCausal{});
  }
}

template <class F>
void with_normalizer(const AttentionCase& c, F&& f) {
  switch (c.normalizer) {
    case NormalizerName::paper:
      return f(mhla::MixedKeySum{c.normalizer_epsilon});
    case NormalizerName::official:
      return f(mhla::MixedProduct{c.normalizer_epsilon});
    case NormalizerName::none:
      return f(mhla::Unnormalized{});
  }
}

/// The library's rotation that a case names, on a grid of `axes` axes, as one type: a variant is
/// then compiled once and not once per rotation. (A user's own rotation looks like this.)
struct ChosenRotary {
  int axes = 1;
  bool half_split = false;
  mhla::HalfSplitRotary half_split_rotary = {};
  mhla::AxialRotary axial_rotary = {};

  mhla::RotationPairs pairs(Index feature_dim) const {
    return half_split ? half_split_rotary.pairs(feature_dim) : axial_rotary.pairs(feature_dim);
  }
  Index axis_pairs(int axis, int rank, Index total_pairs) const {
    const int own = axis - (rank - axes);
    if (own < 0) return 0;
    return half_split ? half_split_rotary.axis_pairs(own, axes, total_pairs)
                      : axial_rotary.axis_pairs(own, axes, total_pairs);
  }
  double frequency(Index j, Index count) const {
    return half_split ? half_split_rotary.frequency(j, count) : axial_rotary.frequency(j, count);
  }
};

/// Throws UnsupportedCase for a rotation of another number of axes than the case's grid has.
template <class F>
void with_rotation(const AttentionCase& c, F&& f) {
  const int axes = static_cast<int>(c.query_side.grid.size());
  const auto require_axes = [&](const char* name, int needed) {
    if (axes != needed)
      throw UnsupportedCase(std::string("rotation ") + name + " with a grid of " +
                            std::to_string(axes) + " axes");
  };
  switch (c.rotation) {
    case RotationName::none:
      return f(mhla::NoRotation{});
    case RotationName::neox_1d:
      require_axes("neox_1d", 1);
      break;
    case RotationName::axial_1d:
      require_axes("axial_1d", 1);
      break;
    case RotationName::axial_2d:
      require_axes("axial_2d", 2);
      break;
    case RotationName::wan_3d:
      require_axes("wan_3d", 3);
      break;
  }
  f(ChosenRotary{axes, c.rotation == RotationName::neox_1d, {c.theta}, {c.theta}});
}

/// One side's geometry; all extents 0 for a side without axes. Axes that the case does not have are
/// 1, in front.
template <class Geometry>
Geometry blocks_of(const TokenGrid& side) {
  Geometry blocks;
  if (side.grid.empty()) return blocks;
  if constexpr (Geometry::rank == 1) {
    blocks.block = side.block[0];
  } else {
    const std::size_t first = Geometry::rank - side.grid.size();
    for (std::size_t axis = 0; axis < Geometry::rank; ++axis) {
      blocks.grid[axis] = axis < first ? 1 : side.grid[axis - first];
      blocks.block[axis] = axis < first ? 1 : side.block[axis - first];
    }
  }
  return blocks;
}

/// Calls f with an empty geometry: a sequence's, or one for grids of two axes and of three, so that
/// a variant is compiled once for both.
template <class F>
void with_geometry(const AttentionCase& c, F&& f) {
  if (c.query_side.grid.size() == 1) return f(mhla::Blocks1D{});
  f(mhla::Blocks3D{});
}

/// Calls f with the variant the policies make; throws UnsupportedCase where there is none.
template <class Geometry, class FeatureMap, class Causality, class Normalizer, class Rotation,
          class F>
void with_policies(const AttentionCase& c, FeatureMap map, Causality, Normalizer normalizer,
                   Rotation rotation, F&& f) {
  constexpr bool causal = !std::is_same_v<Causality, mhla::Bidirectional>;
  if constexpr (causal && Geometry::rank != 1) {
    throw UnsupportedCase("causal attention over a grid of several axes");
  } else if constexpr (causal && std::is_same_v<Normalizer, mhla::MixedProduct>) {
    throw UnsupportedCase("causal attention with normalizer official");
  } else {
    f(mhla::Attention<FeatureMap, Geometry, Causality, Normalizer, Rotation>{
        .feature_map = map,
        .blocks = blocks_of<Geometry>(c.query_side),
        .key_blocks = blocks_of<Geometry>(c.key_side),
        .normalizer = normalizer,
        .rotation = rotation,
        .scale = c.scale});
  }
}

/// Calls f with the variant of a causal case, whose feature map is `map`; throws UnsupportedCase
/// for any other.
template <class FeatureMap, class F>
void with_causal_variant(const AttentionCase& c, FeatureMap map, F&& f) {
  if (c.causality == CausalityName::bidirectional)
    throw UnsupportedCase("causal 0: only causal 1 can be decoded");
  if (c.causality == CausalityName::block_causal)
    throw UnsupportedCase("causal 2: only causal 1 can be decoded");
  if (c.query_side.grid.size() != 1)
    throw UnsupportedCase("causal attention over a grid of several axes");
  with_normalizer(c, [&](auto normalizer) {
    with_rotation(c, [&](auto rotation) {
      with_policies<mhla::Blocks1D>(c, map, mhla::Causal{}, normalizer, rotation, f);
    });
  });
}

/// Calls f with the variant of a case, whose feature map is `map`; throws UnsupportedCase where the
/// library has no such variant.
template <class FeatureMap, class F>
void with_variant(const AttentionCase& c, FeatureMap map, F&& f) {
  with_causality(c, [&](auto causality) {
    with_normalizer(c, [&](auto normalizer) {
      with_geometry(c, [&](auto geometry) {
        with_rotation(c, [&](auto rotation) {
          with_policies<decltype(geometry)>(c, map, causality, normalizer, rotation, f);
        });
      });
    });
  });
}

}  // namespace replay
