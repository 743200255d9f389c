// SPDX-License-Identifier: MIT
// Causality: which keys a query may see.
#pragma once

#include <concepts>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

/// Which keys of its sequence a query sees: all, those of blocks up to its own, or those of tokens
/// up to itself.
enum class Sight { all, past_blocks, past_tokens };

/// Of past blocks query block i sees those b <= i - lag whole: under past_tokens its own goes token
/// by token.
MHLA_HOST_DEVICE constexpr Index lag_of(Sight sight) { return sight == Sight::past_tokens ? 1 : 0; }
MHLA_HOST_DEVICE constexpr bool sees_whole_block(Sight sight, Index i, Index b) {
  return sight == Sight::all || b <= i - lag_of(sight);
}

/// Every query sees every key.
struct Bidirectional {
  static constexpr Sight sight = Sight::all;
};

/// A query sees keys at or before its own token: earlier blocks in full, its own up to itself.
/// One-dimensional blocks only; entries of mix above the diagonal are ignored.
struct Causal {
  static constexpr Sight sight = Sight::past_tokens;
};

/// A query sees earlier blocks and the whole of its own: autoregression over frames or scales.
struct BlockCausal {
  static constexpr Sight sight = Sight::past_blocks;
};

template <class C>
concept Causality =
    std::same_as<C, Bidirectional> || std::same_as<C, Causal> || std::same_as<C, BlockCausal>;

MHLA_NAMESPACE_END
