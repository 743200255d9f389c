// SPDX-License-Identifier: MIT
// Causality: which keys a query may see.
#pragma once

#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup causality
/// \{

/// Which keys of its sequence a query sees.
enum class Sight {
  all,          ///< every key
  past_blocks,  ///< those of blocks up to its own
  past_tokens   ///< those of tokens up to itself
};

/// \cond INTERNAL
// Query block i sees blocks b <= i - lag in full: under past_tokens its own is seen token by token.
MHLA_HOST_DEVICE constexpr Index lag_of(Sight sight) { return sight == Sight::past_tokens ? 1 : 0; }
MHLA_HOST_DEVICE constexpr bool sees_whole_block(Sight sight, Index i, Index b) {
  return sight == Sight::all || b <= i - lag_of(sight);
}
/// \endcond

/// Every query sees every key.
struct Bidirectional {
  static constexpr Sight sight = Sight::all;  ///< what it is to the backends
};

/// A query sees keys up to its own token: earlier blocks in full, its own block up to itself.
/// Blocks1D only; entries of mix above the diagonal are not read and have gradient 0.
struct Causal {
  static constexpr Sight sight = Sight::past_tokens;  ///< what it is to the backends
};

/// A query sees earlier blocks and its own in full: autoregression over frames or scales. Blocks1D
/// only; entries of mix above the diagonal are not read and have gradient 0.
struct BlockCausal {
  static constexpr Sight sight = Sight::past_blocks;  ///< what it is to the backends
};

/// Bidirectional, Causal or BlockCausal.
template <class C>
concept Causality =
    std::same_as<C, Bidirectional> || std::same_as<C, Causal> || std::same_as<C, BlockCausal>;

/// \}

MHLA_NAMESPACE_END
