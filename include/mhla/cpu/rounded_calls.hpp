// SPDX-License-Identifier: MIT
// Which calls with Precision::fast round what they multiply.
#pragma once

#include <mhla/cpu/plan.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Whether a call with tensors of T multiplies bfloat16 in pairs. Not if its heads have so few
/// features or values that rounding errors do not average out, nor under Causal if its blocks have
/// so few tokens. Nor under BlockCausal: of a token that outweighs all others, and that one block
/// sees in a summary that is rounded twice, too much would be lost.
template <class T, class V>
InPairs<T> multiplies_pairs([[maybe_unused]] const V& attention,
                            [[maybe_unused]] const Problem& problem) {
  constexpr Index few = 32;
  constexpr Index few_tokens = 4;
  if constexpr (std::is_same_v<InPairs<T>, std::false_type> || sight_of<V> == Sight::past_blocks)
    return {};
  else
    return attention.precision == Precision::fast && has_pair_products() &&
           problem.feature_dim >= few && problem.shape.value_dim >= few &&
           !(is_causal<V> && problem.query_grid.block_tokens() < few_tokens);
}

/// Whether a variant's backward pass can be rounded. Rounding shows where differences are formed:
/// in the derivative of a row-wise map, such as a softmax; and with a normalizer, unless what
/// numerators and denominators have in common is subtracted before (pairs/centers.hpp). That is
/// possible only where every query sees the same keys, by a matrix: with a causality the common
/// part would include tokens that some queries do not see.
template <class L>
inline constexpr bool rounds_backward =
    ElementwiseFeatureMap<typename L::FeatureMapType> && !mixes_products<L> &&
    !(normalizes<L> && (is_causal<L> || is_structured<L>));

/// Whether a call's backward pass multiplies bfloat16 in pairs. Not with so few blocks that
/// rounding errors of dmix do not average out. With a normalizer, numerators and denominators must
/// have the same features (no rotation), and phi(0) must be close to 0.
template <class T, class V>
InPairs<T> multiplies_pairs_backward(const V& attention, const Problem& problem) {
  constexpr Index few = 4;
  constexpr float least = 1e-3f;  // from here on rounding phi(0) shows
  if constexpr (!rounds_backward<LoweredOf<V>> || (normalizes<V> && rotates<V>)) return {};
  if ((std::min)(problem.query_blocks, problem.key_blocks) < few) return {};
  if constexpr (normalizes<V> && ElementwiseFeatureMap<typename V::FeatureMapType>)
    if (!((std::abs)(value_of(attention.feature_map, 0.0f)) < least)) return {};
  return multiplies_pairs<T>(attention, problem);
}

}  // namespace cpu

MHLA_NAMESPACE_END
