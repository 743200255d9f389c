// SPDX-License-Identifier: MIT
// Causality: which keys a query may see.
#pragma once

#include <concepts>
#include <mhla/core/config.hpp>

MHLA_NAMESPACE_BEGIN

/// Every query sees every key.
struct Bidirectional {};

/// A query sees keys at or before its own token: earlier blocks in full, its own up to itself.
/// One-dimensional blocks only; entries of mix above the diagonal are ignored.
struct Causal {};

/// A query sees earlier blocks and the whole of its own: autoregression over frames or scales.
struct BlockCausal {};

template <class C>
concept Causality =
    std::same_as<C, Bidirectional> || std::same_as<C, Causal> || std::same_as<C, BlockCausal>;

MHLA_NAMESPACE_END
