// SPDX-License-Identifier: MIT
// What every fused kernel is compiled for.
#pragma once

#include <mhla/core/config.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

template <class Scalar, class FeatureMap, bool Rotates, int KeyDim, int ValueDim>
struct KernelTraits {
  using T = Scalar;
  using Map = FeatureMap;
  static constexpr bool rotates = Rotates;
  static constexpr int key_dim = KeyDim;
  static constexpr int value_dim = ValueDim;
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
