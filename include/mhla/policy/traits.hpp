// SPDX-License-Identifier: MIT
// What the stages of every backend need to know about a variant, or a lowered one.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/policy/causality.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/mixing.hpp>
#include <mhla/policy/normalizer.hpp>
#include <mhla/policy/rotation.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

template <class V>
inline constexpr bool mixes_key_sums = V::NormalizerType::needs.mixed_key_sums;
template <class V>
inline constexpr bool mixes_products = V::NormalizerType::needs.mixed_products;
/// Sums are divided by denominators, which are computed from key sums.
template <class V>
inline constexpr bool normalizes = mixes_key_sums<V> || mixes_products<V>;

template <class V>
inline constexpr Sight sight_of = V::CausalityType::sight;
template <class V>
inline constexpr bool is_causal = sight_of<V> != Sight::all;
/// Queries see their own block only up to themselves: it is handled token by token.
template <class V>
inline constexpr bool is_causal_within_block = sight_of<V> == Sight::past_tokens;

template <class V>
inline constexpr bool rotates = !std::is_same_v<typename V::RotationType, NoRotation>;
/// S~ comes from S by a list of products in place of one matrix.
template <class V>
inline constexpr bool is_structured = !std::is_same_v<typename V::MixingType, DenseMixing>;
template <class V>
inline constexpr bool is_rowwise = RowwiseFeatureMap<typename V::FeatureMapType>;

MHLA_NAMESPACE_END
