// SPDX-License-Identifier: MIT
// Which variants are compiled. The laws' are those of dense matrices in plain batches: with each
// feature map 7 pairs of geometry and rotation x 3 normalizers = 21 bidirectional variants, and 3
// rotations x 2 normalizers = 6 of each of the two causal modes. Builds without MHLA_FULL_PRODUCT,
// and the CUDA backend with it, take the golden cases' and the subset listed here, in which every
// two policies that can meet do meet (tests/laws/product.cpp shows it); the CUDA backend without
// it, of these the maps of each kind. Where MHLA_TEST_GATE asks for it fuzz/ adds other batches,
// structured mixings and scalars of 16 bits.
#pragma once

#include <array>
#include <cstddef>

#include "tests/variants/description.hpp"

namespace variants {

#if defined(MHLA_FULL_PRODUCT) && !defined(MHLA_TEST_CUDA)
inline constexpr bool full_product = true;
#else
inline constexpr bool full_product = false;
#endif
#if defined(MHLA_TEST_GATE) && !defined(MHLA_TEST_CUDA)
inline constexpr bool attacked = true;
#else
inline constexpr bool attacked = false;
#endif

/// Whether the library has such a variant.
constexpr bool exists(const Policies& p, Batch batch) {
  if (p.rank != 1 && (p.rotation == Rotation::half_split || !p.bidirectional())) return false;
  if (p.mixes_products())
    return p.bidirectional() && batch == Batch::plain && p.mixing == Mixing::dense;
  if (batch >= Batch::packed_by_int32 && (p.rank != 1 || p.mixing == Mixing::separable))
    return false;
  return p.mixing == Mixing::dense || (p.mixing == Mixing::separable) == p.bidirectional();
}

/// Every map meets the three normalizers on three geometries: Blocks1D with HalfSplitRotary,
/// Blocks2D and Blocks3D one of them with AxialRotary, one without; which normalizer goes where
/// turns with the map. Blocks1D with the other rotations comes on top, and both causal modes with
/// one rotation and one normalizer for each map.
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

/// Of the laws, in double.
constexpr bool in_laws(const Policies& policies) {
#if defined(MHLA_TEST_CUDA) && !defined(MHLA_FULL_PRODUCT)
  if (!is_one_of_its_kind(policies.map)) return in_golden_cases(policies);
#endif
  return full_product || in_pairwise_subset(policies) || in_golden_cases(policies);
}
/// In another type fewer, for the sake of compile time: on the CUDA backend, in float, the golden
/// cases'.
constexpr bool in_laws(const Policies& policies, Scalar scalar) {
  if (!in_laws(policies) || scalar == Scalar::bfloat16 || scalar == Scalar::float16) return false;
  if (scalar == Scalar::float64) return true;
#if (defined(MHLA_TEST_CUDA) && !defined(MHLA_FULL_PRODUCT)) || defined(MHLA_SMALL_PRODUCT)
  return scalar == Scalar::float32 && in_golden_cases(policies);
#elif defined(MHLA_TEST_CUDA)
  if (scalar == Scalar::extended) return false;
#endif
  if (scalar == Scalar::extended && !full_product)
    return policies.rank == 1 && in_pairwise_subset(policies);
  return policies.bidirectional() || in_pairwise_subset(policies) || in_golden_cases(policies);
}

/// Of the attacks. A geometry, a rotation and a layout of the batch cost little, as the library
/// lowers them to tables; a map, a causality and a normalizer are compiled anew. With the full
/// product every map meets all of these in every scalar; else one pair of them, in each scalar
/// another. The rest is shared out, so that over the scalars all meet all.
constexpr bool in_attacks(const Policies& p, Batch batch, Scalar scalar) {
  constexpr int of_pair[3][3] = {{0, 2, 4}, {5, -1, 1}, {3, -1, 6}};  // [causality][normalizer]
  // Both maps whose gradients Precision::fast rounds under a normalizer have such a one.
  constexpr int in_bfloat16[num_maps] = {4, 0, 0, 5, 1, 2, 3, 6, 5};
  if (scalar == Scalar::extended) return false;
  const int s = static_cast<int>(scalar);
  const int map = static_cast<int>(p.map);
  const int pair = of_pair[static_cast<int>(p.causality)][static_cast<int>(p.normalizer)];
  const int wanted = scalar == Scalar::bfloat16 ? in_bfloat16[map] : (map + 2 * s) % 7;
  if (!full_product && pair != wanted) return false;
  // In float some maps' mixings are structured, where they can be.
  const bool structured = scalar == Scalar::float32 && !p.mixes_products() &&
                          (map == 2 || map == 3 || map == 5 || map == 6);
  if ((p.mixing != Mixing::dense) != structured) return false;
  const int rest = p.rank + static_cast<int>(p.rotation) + 2 * static_cast<int>(batch);
  return (rest + map + pair + s) % 4 == 0;
}

constexpr bool in_build(const Policies& p, Batch batch, Scalar scalar) {
  if (batch == Batch::plain && p.mixing == Mixing::dense && in_laws(p, scalar)) return true;
  return attacked && in_attacks(p, batch, scalar);
}

/// Calls f(policies, batch) for all that exists of the maps [first, last).
template <class F>
constexpr void for_each_variant(int first, int last, const F& f) {
  for (int map = first; map < last; ++map)
    for (int rank = 1; rank <= 3; ++rank)
      for (int rotation = 0; rotation < 3; ++rotation)
        for (int normalizer = 0; normalizer < 3; ++normalizer)
          for (int causality = 0; causality < 3; ++causality)
            for (int mixing = 0; mixing < 3; ++mixing)
              for (int batch = 0; batch < 4; ++batch) {
                const Policies p{Map(map),
                                 rank,
                                 Rotation(rotation),
                                 Normalizer(normalizer),
                                 Causality(causality),
                                 Mixing(mixing)};
                if (exists(p, Batch(batch))) f(p, Batch(batch));
              }
}

}  // namespace variants
