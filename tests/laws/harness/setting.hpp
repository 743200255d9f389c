// SPDX-License-Identifier: MIT
// The run-time numbers of a variant, whatever its types.
#pragma once

#include <algorithm>
#include <mhla/core/index.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/variant.hpp>
#include <mhla/testing/host_tensor.hpp>

#include "tests/variants/library.hpp"

namespace laws {

using mhla::Grid;
using mhla::Index;
using mhla::testing::HostTensor;
using variants::Causality;
using variants::Map;
using variants::name_of;
using variants::Normalizer;
using variants::num_maps;
using variants::Policies;
using variants::Rotation;

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
  mhla::Path path = mhla::Path::automatic;
  HostTensor<double, 2> projection;  ///< Favor's [features, key_dim]
};

/// A tensor whose type is forgotten.
template <class T, int Rank>
variants::View view_of(const mhla::TensorView<T, Rank>& view) {
  variants::View result{const_cast<std::remove_const_t<T>*>(view.data), {1, 1, 1, 1}, {}};
  std::copy_n(view.extent, Rank, result.extent.end() - Rank);
  std::copy_n(view.stride, Rank, result.stride.end() - Rank);
  return result;
}

/// The numbers of a setting, and a projection in the type that sums are formed in.
inline variants::Call call_of(const Setting& setting, const variants::View& projection = {}) {
  const auto grid = [](const Grid& from) {
    variants::Grid to;
    std::copy_n(from.extent, 3, to.extent.begin());
    std::copy_n(from.block, 3, to.block.begin());
    return to;
  };
  variants::Call call;
  call.numbers.feature_epsilon = setting.feature_epsilon;
  call.numbers.normalizer_epsilon = setting.normalizer_epsilon;
  call.numbers.scale = setting.scale;
  call.numbers.theta = setting.theta;
  call.numbers.nu = setting.nu;
  call.numbers.leading_corner = setting.leading_corner;
  call.numbers.path = static_cast<int>(setting.path);
  call.queries = grid(setting.queries);
  call.keys = grid(setting.keys);
  call.own_key_blocks = setting.cross;
  call.projection = projection;
  return call;
}

}  // namespace laws
