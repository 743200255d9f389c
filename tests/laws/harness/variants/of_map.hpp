// SPDX-License-Identifier: MIT
// The variants of one feature map.
#pragma once

#include "tests/laws/harness/variant_of.hpp"

namespace laws {

template <class Map, class Geometry, class Rotation, class Normalizer,
          class Mode = mhla::Bidirectional>
void add(Variants& variants) {
  using V = mhla::Attention<Map, Geometry, Mode, Normalizer, Rotation>;
  if constexpr (in_build(policies_of<V>())) variants.push_back(&VariantOf<V>::instance());
}

template <class Map, class Geometry, class Rotation>
void add_normalizers(Variants& variants) {
  add<Map, Geometry, Rotation, mhla::MixedKeySum>(variants);
  add<Map, Geometry, Rotation, mhla::MixedProduct>(variants);
  add<Map, Geometry, Rotation, mhla::Unnormalized>(variants);
}

template <class Map, class Rotation>
void add_causal(Variants& variants) {
  using namespace mhla;
  add<Map, Blocks1D, Rotation, MixedKeySum, Causal>(variants);
  add<Map, Blocks1D, Rotation, Unnormalized, Causal>(variants);
  add<Map, Blocks1D, Rotation, MixedKeySum, BlockCausal>(variants);
  add<Map, Blocks1D, Rotation, Unnormalized, BlockCausal>(variants);
}

template <class Map>
void add_all_of(Variants& variants) {
  using namespace mhla;
  add_normalizers<Map, Blocks1D, NoRotation>(variants);
  add_normalizers<Map, Blocks1D, HalfSplitRotary>(variants);
  add_normalizers<Map, Blocks1D, AxialRotary>(variants);
  add_normalizers<Map, Blocks2D, NoRotation>(variants);
  add_normalizers<Map, Blocks2D, AxialRotary>(variants);
  add_normalizers<Map, Blocks3D, NoRotation>(variants);
  add_normalizers<Map, Blocks3D, AxialRotary>(variants);
  add_causal<Map, NoRotation>(variants);
  add_causal<Map, HalfSplitRotary>(variants);
  add_causal<Map, AxialRotary>(variants);
}

}  // namespace laws
