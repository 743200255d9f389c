// SPDX-License-Identifier: MIT
// From the description of a variant to its type, and from a call's numbers to its value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mhla/core/tensor_view.hpp>
#include <mhla/policy/variant.hpp>
#include <tuple>

#include "tests/variants/library.hpp"

namespace variants {

template <class T, std::size_t Rank>
mhla::TensorView<T, int(Rank)> typed(const View& view) {
  mhla::TensorView<T, int(Rank)> result;
  result.data = static_cast<T*>(view.data);
  for (std::size_t axis = 0; axis < Rank; ++axis) {
    result.extent[axis] = view.extent[axis + 4 - Rank];
    result.stride[axis] = view.stride[axis + 4 - Rank];
  }
  return result;
}

// In the order of the enumerations that name them.
template <class, class... Types>
using AfterFirst = std::tuple<Types...>;
#define VARIANTS_TYPE(enumerator, name, ...) , __VA_ARGS__
template <class A>
using Maps = AfterFirst<void VARIANTS_FEATURE_MAPS(VARIANTS_TYPE)>;
#undef VARIANTS_TYPE
using Geometries = std::tuple<mhla::Blocks1D, mhla::Blocks2D, mhla::Blocks3D>;
using Rotations = std::tuple<mhla::NoRotation, mhla::HalfSplitRotary, mhla::AxialRotary>;
using Normalizers = std::tuple<mhla::MixedKeySum, mhla::MixedProduct, mhla::Unnormalized>;
using Causalities = std::tuple<mhla::Bidirectional, mhla::Causal, mhla::BlockCausal>;
using Mixings = std::tuple<mhla::DenseMixing, mhla::RecurrentMixing, mhla::SeparableMixing>;

template <auto choice, class Types>
using Chosen = std::tuple_element_t<static_cast<std::size_t>(choice), Types>;

/// The type of a variant whose sums are formed in A.
template <Policies p, class A>
using AttentionOf =
    mhla::Attention<Chosen<p.map, Maps<A>>, Chosen<p.rank - 1, Geometries>,
                    Chosen<p.causality, Causalities>, Chosen<p.normalizer, Normalizers>,
                    Chosen<p.rotation, Rotations>, Chosen<p.mixing, Mixings>>;

/// The description of a type.
template <class Type, class... Types>
constexpr int place_in(std::tuple<Types...>*) {
  int place = 0;
  (void)((std::is_same_v<Type, Types> || (++place, false)) || ...);
  return place;
}
template <class Type, class Types>
constexpr int place_of = place_in<Type>(static_cast<Types*>(nullptr));
template <class V>
constexpr Policies policies_of() {
  return {Map(place_of<typename V::FeatureMapType, Maps<double>>),
          V::GeometryType::rank,
          Rotation(place_of<typename V::RotationType, Rotations>),
          Normalizer(place_of<typename V::NormalizerType, Normalizers>),
          Causality(place_of<typename V::CausalityType, Causalities>),
          Mixing(place_of<typename V::MixingType, Mixings>)};
}

/// A feature map with a call's numbers; Favor borrows the call's projection.
template <class FeatureMap>
FeatureMap feature_map_of(const Call& call) {
  FeatureMap map{};
  if constexpr (requires { map.epsilon; }) map.epsilon = call.numbers.feature_epsilon;
  if constexpr (requires { map.nu; }) map.nu = call.numbers.nu;
  if constexpr (requires { map.projection.data; })
    map.projection =
        typed<std::remove_pointer_t<decltype(map.projection.data)>, 2>(call.projection);
  return map;
}

template <class Geometry>
Geometry blocks_of(const Grid& grid) {
  Geometry blocks;
  if constexpr (Geometry::rank == 1) {
    blocks.block = grid.block[2];
  } else {
    for (std::size_t axis = 0; axis < Geometry::rank; ++axis) {
      blocks.grid[axis] = grid.extent[axis + 3 - Geometry::rank];
      blocks.block[axis] = grid.block[axis + 3 - Geometry::rank];
    }
  }
  return blocks;
}

/// The variant of a call.
template <class V>
V attention_of(const Call& call) {
  const Numbers& numbers = call.numbers;
  V attention{.feature_map = feature_map_of<typename V::FeatureMapType>(call),
              .blocks = blocks_of<typename V::GeometryType>(call.queries)};
  if (call.own_key_blocks) attention.key_blocks = blocks_of<typename V::GeometryType>(call.keys);
  if constexpr (requires { attention.normalizer.epsilon; })
    attention.normalizer.epsilon = numbers.normalizer_epsilon;
  if constexpr (requires { attention.rotation.theta; }) attention.rotation.theta = numbers.theta;
  if constexpr (requires { attention.mixing.leading_corner; })
    attention.mixing.leading_corner = numbers.leading_corner;
  if constexpr (requires { attention.mixing.states; }) attention.mixing.states = numbers.terms;
  if constexpr (requires { attention.mixing.rank; }) attention.mixing.rank = numbers.terms;
  attention.scale = numbers.scale;
  attention.precision = numbers.fast ? mhla::Precision::fast : mhla::Precision::exact;
  attention.path = mhla::Path{numbers.path};
  return attention;
}

template <class T>
mhla::Shape shape_of(const Call& call) {
  return mhla::shape_of(typed<const T, 4>(call.q), typed<const T, 4>(call.k),
                        typed<const T, 4>(call.v), typed<const mhla::Accumulator<T>, 3>(call.mix));
}

}  // namespace variants
