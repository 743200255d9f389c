// SPDX-License-Identifier: MIT
// The product of policies: with each feature map 7 pairs of geometry and rotation x 3 normalizers =
// 21 bidirectional variants, and 3 rotations x 2 normalizers = 6 of each of the two causal modes.
// Builds without MHLA_FULL_PRODUCT, and the CUDA backend with it, take the golden cases' variants
// and the subset listed here, in which every two policies that can meet do meet
// (tests/laws/product.cpp shows it); the CUDA backend without it, of these the maps of each kind.
#pragma once

#include <type_traits>
#include <vector>

#include "tests/laws/harness/variant.hpp"

namespace laws {

#if defined(MHLA_FULL_PRODUCT) && !defined(MHLA_TEST_CUDA)
inline constexpr bool full_product = true;
#else
inline constexpr bool full_product = false;
#endif

/// Whether a build takes the variant. Every map meets the three normalizers on three geometries:
/// Blocks1D with HalfSplitRotary, Blocks2D and Blocks3D one of them with AxialRotary, one without;
/// which normalizer goes where turns with the map. Blocks1D with the other rotations comes on top,
/// and both causal modes with one rotation and one normalizer for each map.
constexpr bool in_pairwise_subset(const Policies& policies) {
  const int map = static_cast<int>(policies.map);
  const int normalizer = static_cast<int>(policies.normalizer);
  if (!policies.bidirectional()) {
    const int mode = static_cast<int>(policies.causality);
    return (map + mode) % 3 == static_cast<int>(policies.rotation) &&
           ((map / 3 + mode) % 2 == 0) == policies.normalizes();
  }
  if (policies.rank == 1 && policies.rotation != Rotation::half_split)
    return map == (policies.rotation == Rotation::none ? 1 : 3);
  if ((map + policies.rank) % 3 != normalizer) return false;
  if (policies.rank == 1) return true;
  const bool axial = (map / 3 + policies.rank) % 2 == 0;
  return axial == (policies.rotation == Rotation::axial);
}

/// The variants of the golden cases (tests/golden), which every build runs.
constexpr bool in_golden_cases(const Policies& policies) {
  constexpr auto none = Rotation::none;
  constexpr auto half_split = Rotation::half_split;
  constexpr auto causal = Causality::causal;
  constexpr auto key_sum = Normalizer::mixed_key_sum;
  constexpr auto product = Normalizer::mixed_product;
  constexpr auto unnormalized = Normalizer::unnormalized;
  for (const Policies& golden : {Policies{Map::relu, 1, none, unnormalized},
                                 {Map::relu, 1, none, key_sum},
                                 {Map::relu, 1, none, product},
                                 {Map::relu, 2, none, key_sum},
                                 {Map::relu, 2, none, product},
                                 {Map::relu, 2, none, unnormalized},
                                 {Map::relu, 3, none, unnormalized},
                                 {Map::relu, 3, Rotation::axial, product},
                                 {Map::relu, 3, Rotation::axial, unnormalized},
                                 {Map::elu_plus_one, 2, none, unnormalized},
                                 {Map::elu_plus_one, 2, none, key_sum},
                                 {Map::elu_plus_one, 3, none, key_sum},
                                 {Map::exp, 1, none, key_sum},
                                 {Map::softmax, 2, none, key_sum},
                                 {Map::squared_relu, 2, none, unnormalized},
                                 {Map::dpfp, 1, none, unnormalized},
                                 {Map::favor, 1, none, key_sum},
                                 {Map::relu, 1, none, unnormalized, causal},
                                 {Map::relu, 1, half_split, unnormalized, causal},
                                 {Map::elu_plus_one, 1, none, unnormalized, causal},
                                 {Map::elu_plus_one, 1, none, key_sum, causal},
                                 {Map::elu_plus_one, 1, half_split, key_sum, causal},
                                 {Map::hedgehog, 1, none, key_sum, causal}})
    if (golden == policies) return true;
  return false;
}

/// Maps of each kind, which the CUDA backend runs by other code: element by element, by rows, into
/// more features, with a matrix that is borrowed.
constexpr bool is_one_of_its_kind(Map map) {
  return map == Map::relu || map == Map::softmax || map == Map::hedgehog || map == Map::favor;
}

constexpr bool in_build(const Policies& policies) {
#if defined(MHLA_TEST_CUDA) && !defined(MHLA_FULL_PRODUCT)
  if (!is_one_of_its_kind(policies.map)) return in_golden_cases(policies);
#endif
  return full_product || in_pairwise_subset(policies) || in_golden_cases(policies);
}

/// Whether a variant is compiled in a scalar type, for the sake of compile time: all are in double;
/// in float, without the gate, the golden cases' on the CUDA backend.
template <class T>
constexpr bool in_scalar(const Policies& policies) {
  if (std::is_same_v<T, double>) return true;
#if defined(MHLA_TEST_CUDA) && !defined(MHLA_TEST_GATE) && !defined(MHLA_FULL_PRODUCT)
  return in_golden_cases(policies);
#endif
  if (std::is_same_v<T, long double> && !full_product)
    return policies.rank == 1 && in_pairwise_subset(policies);
  return policies.bidirectional() || in_pairwise_subset(policies) || in_golden_cases(policies);
}

using Variants = std::vector<const Variant*>;

// One for each feature map, in variants/<map>.cpp.
#define LAWS_DECLARE(value, type, name) void add_##value(Variants& variants);
LAWS_FEATURE_MAPS(LAWS_DECLARE)
#undef LAWS_DECLARE

/// The variants of this build.
inline const Variants& product() {
  static const Variants variants = [] {
    Variants all;
#define LAWS_ADD(value, type, name) add_##value(all);
    LAWS_FEATURE_MAPS(LAWS_ADD)
#undef LAWS_ADD
    return all;
  }();
  return variants;
}

}  // namespace laws
