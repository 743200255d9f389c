// SPDX-License-Identifier: MIT
// What a call of attention is, as values that are chosen at run time. The oracle of fuzz/ reads it:
// no header of the library is included.
#pragma once

#include <array>
#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

namespace variants {

using Size = std::ptrdiff_t;

/// entry(enumerator, name, type with sums in A) for every feature map, row-wise ones last.
// clang-format off
#define VARIANTS_FEATURE_MAPS(entry)                    \
  entry(identity, "Identity", mhla::Identity)           \
  entry(relu, "Relu", mhla::Relu)                       \
  entry(squared_relu, "SquaredRelu", mhla::SquaredRelu) \
  entry(elu_plus_one, "EluPlusOne", mhla::EluPlusOne)   \
  entry(exp, "Exp", mhla::Exp)                          \
  entry(softmax, "Softmax", mhla::Softmax)              \
  entry(hedgehog, "Hedgehog", mhla::Hedgehog)           \
  entry(dpfp, "Dpfp", mhla::Dpfp)                       \
  entry(favor, "Favor", mhla::Favor<A>)
// clang-format on

#define VARIANTS_ENUMERATOR(enumerator, ...) enumerator,
enum class Map { VARIANTS_FEATURE_MAPS(VARIANTS_ENUMERATOR) };
#undef VARIANTS_ENUMERATOR
#define VARIANTS_NAME(enumerator, name, ...) name,
inline constexpr const char* map_names[] = {VARIANTS_FEATURE_MAPS(VARIANTS_NAME)};
#undef VARIANTS_NAME
inline constexpr int num_maps = int(std::size(map_names));
/// Maps whose features are 0, or an epsilon, for x <= 0.
constexpr bool is_rectified(Map map) { return map == Map::relu || map == Map::squared_relu; }

enum class Rotation { none, half_split, axial };
enum class Normalizer { mixed_key_sum, mixed_product, unnormalized };
enum class Causality { bidirectional, causal, block_causal };
enum class Mixing { dense, recurrent, separable };

/// The types a variant is made of.
struct Policies {
  Map map;
  int rank;  ///< axes of the grid: Blocks1D, Blocks2D, Blocks3D
  Rotation rotation;
  Normalizer normalizer;
  Causality causality = Causality::bidirectional;
  Mixing mixing = Mixing::dense;

  constexpr bool rotates() const { return rotation != Rotation::none; }
  constexpr bool normalizes() const { return normalizer != Normalizer::unnormalized; }
  constexpr bool mixes_products() const { return normalizer == Normalizer::mixed_product; }
  constexpr bool bidirectional() const { return causality == Causality::bidirectional; }

  friend bool operator==(const Policies&, const Policies&) = default;
};

/// What a tensor's elements are; extended: long double.
enum class Scalar { float64, float32, bfloat16, float16, extended };
/// How the sequences of a batch lie in its tensors.
enum class Batch { plain, padded, packed_by_int32, packed_by_int64 };

/// "Relu Blocks1D Causal AxialRotary MixedKeySum"; what is usual goes without saying
inline std::string name_of(const Policies& p) {
  constexpr const char* rotations[] = {"NoRotation", "HalfSplitRotary", "AxialRotary"};
  constexpr const char* normalizers[] = {"MixedKeySum", "MixedProduct", "Unnormalized"};
  constexpr const char* causalities[] = {"", "Causal ", "BlockCausal "};
  constexpr const char* mixings[] = {"", " RecurrentMixing", " SeparableMixing"};
  return std::string(map_names[int(p.map)]) + " Blocks" + std::to_string(p.rank) + "D " +
         causalities[int(p.causality)] + rotations[int(p.rotation)] + " " +
         normalizers[int(p.normalizer)] + mixings[int(p.mixing)];
}

/// The numbers of a call.
struct Numbers {
  double feature_epsilon = 0;
  double normalizer_epsilon = 0;
  double scale = 1;
  double theta = 1;
  Size nu = 1;                     ///< of Dpfp
  Size features = 0;               ///< of Favor
  bool fast = false;               ///< Precision::fast
  int path = 0;                    ///< mhla::Path, by its number
  Size terms = 1;                  ///< states of a recurrence, or Kronecker products
  std::vector<double> projection;  ///< [features, key_dim]
  bool leading_corner = false;     ///< of a mix that is larger than a bidirectional layout
};

/// Of an axis each; of a tensor of lower rank the leading ones are 1.
using Extents = std::array<Size, 4>;

/// Tokens in raster order and the blocks they are cut into; unused leading axes are 1.
struct Grid {
  std::array<Size, 3> extent{1, 1, 1};
  std::array<Size, 3> block{1, 1, 1};

  Size tokens() const { return extent[0] * extent[1] * extent[2]; }
  Size blocks() const { return layout(0) * layout(1) * layout(2); }
  Size layout(int axis) const {
    const auto a = static_cast<std::size_t>(axis);
    return (extent[a] + block[a] - 1) / block[a];
  }
  std::array<Size, 3> coordinates(Size token) const {
    return {token / extent[2] / extent[1], token / extent[2] % extent[1], token % extent[2]};
  }
  Size block_of(Size token) const {
    const auto at = coordinates(token);
    return (at[0] / block[0] * layout(1) + at[1] / block[1]) * layout(2) + at[2] / block[2];
  }
};

}  // namespace variants
