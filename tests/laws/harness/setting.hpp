// SPDX-License-Identifier: MIT
// The run-time numbers of a variant, whatever its types, and the Attention they make.
#pragma once

#include <mhla/core/index.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/rotation.hpp>
#include <mhla/policy/variant.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <type_traits>

namespace laws {

using mhla::Grid;
using mhla::Index;
using mhla::testing::HostTensor;

/// What makes an Attention of a given type. A number that the type has no use for is ignored.
struct Setting {
  Grid queries;        ///< the leading axes of a geometry of lower rank are 1
  Grid keys;           ///< as `queries` unless `cross`
  bool cross = false;  ///< whether key_blocks is given
  double feature_epsilon = 1e-6;
  double normalizer_epsilon = 1e-6;
  double scale = 1;
  double theta = 10000;
  bool leading_corner = false;
  Index nu = 2;
  HostTensor<double, 2> projection;  ///< Favor's [features, key_dim]
};

template <class Geometry>
Geometry geometry_of(const Grid& grid) {
  if constexpr (Geometry::rank == 1) {
    return {.block = grid.block[2]};
  } else if constexpr (Geometry::rank == 2) {
    return {.grid = {grid.extent[1], grid.extent[2]}, .block = {grid.block[1], grid.block[2]}};
  } else {
    return {.grid = {grid.extent[0], grid.extent[1], grid.extent[2]},
            .block = {grid.block[0], grid.block[1], grid.block[2]}};
  }
}

/// A feature map with the setting's numbers; Favor borrows the setting's projection.
template <class Map>
Map feature_map_of(const Setting& setting) {
  Map map{};
  if constexpr (requires { map.epsilon; }) map.epsilon = setting.feature_epsilon;
  if constexpr (requires { map.nu; }) map.nu = setting.nu;
  if constexpr (requires { map.projection; }) map.projection = setting.projection.view();
  return map;
}

/// The Attention of type V; lives no longer than `setting`.
template <mhla::AttentionVariant V>
V attention_of(const Setting& setting) {
  V attention{.feature_map = feature_map_of<typename V::FeatureMapType>(setting),
              .blocks = geometry_of<typename V::GeometryType>(setting.queries)};
  if (setting.cross) attention.key_blocks = geometry_of<typename V::GeometryType>(setting.keys);
  if constexpr (requires { attention.normalizer.epsilon; })
    attention.normalizer.epsilon = setting.normalizer_epsilon;
  if constexpr (requires { attention.rotation.theta; }) attention.rotation.theta = setting.theta;
  if constexpr (requires { attention.mixing.leading_corner; })
    attention.mixing.leading_corner = setting.leading_corner;
  attention.scale = setting.scale;
  return attention;
}

}  // namespace laws
