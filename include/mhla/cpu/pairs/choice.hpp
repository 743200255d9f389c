// SPDX-License-Identifier: MIT
// Whether Precision::fast multiplies a call's tensors in pairs of bfloat16, by variant, shape and
// machine. Where values make rounding show, units decide (centers.hpp).
#pragma once

#include <mhla/cpu/instruction_set.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// bool where tensors of T may be multiplied in pairs, else std::false_type, so that programs
/// without bfloat16 compile nothing for it.
template <class T>
using InPairs = std::conditional_t<std::is_same_v<T, BFloat16>, bool, std::false_type>;

/// Whether a variant's backward pass can be rounded. Rounding shows where differences are formed:
/// in the derivative of a row-wise map, such as a softmax; and with a normalizer, unless what
/// numerators and denominators have in common is subtracted before (pairs/centers.hpp). That is
/// possible only where every query sees the same keys, by a matrix: with a causality the common
/// part would include tokens that some queries do not see.
template <class V>
inline constexpr bool rounds_backward =
    ElementwiseFeatureMap<typename V::FeatureMapType> && !mixes_products<V> &&
    !(normalizes<V> && (is_causal<V> || is_structured<V>));

/// Whether a pass with tensors of T multiplies bfloat16 in pairs. Not if its heads have so few
/// features or values that rounding errors do not average out, nor under Causal if its blocks have
/// so few tokens. Nor under BlockCausal: of a token that outweighs all others, and that one block
/// sees in a summary that is rounded twice, too much would be lost.
///
/// A backward pass also needs so many blocks that rounding errors of dmix average out, and with a
/// normalizer numerators and denominators of the same features (no rotation), and phi(0) close to
/// 0. Of stages, only summarize and read_out round, and of these only tokens' products.
template <class T, class V>
InPairs<T> multiplies_pairs([[maybe_unused]] const V& attention,
                            [[maybe_unused]] const Problem& problem,
                            [[maybe_unused]] bool backward) {
  constexpr Index few = 32;
  constexpr Index few_tokens = 4;
  constexpr Index few_blocks = 4;
  constexpr float least = 1e-3f;  // from here on rounding phi(0) shows
  if constexpr (std::is_same_v<InPairs<T>, std::false_type> || sight_of<V> == Sight::past_blocks) {
    return {};
  } else {
    if (attention.precision != Precision::fast || !has_pair_products()) return false;
    if (problem.stage && problem.stage != Stage::summarize && problem.stage != Stage::read_out)
      return false;
    if (problem.feature_dim < few || problem.shape.value_dim < few) return false;
    if (is_causal<V> && problem.query_grid.block_tokens() < few_tokens) return false;
    if (!backward) return true;
    if (!rounds_backward<V> || (normalizes<V> && rotates<V>)) return false;
    if constexpr (normalizes<V> && ElementwiseFeatureMap<typename V::FeatureMapType>)
      if (!((std::abs)(value_of(attention.feature_map, 0.0f)) < least)) return false;
    return (std::min)(problem.query_blocks, problem.key_blocks) >= few_blocks;
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
