// SPDX-License-Identifier: MIT
// The sizes of a call and of its tiles.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cpu/block_table.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/traits.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

template <class L>
inline constexpr Index max_tokens_of_tile =
    is_causal_within_block<L> ? max_causal_tile_tokens : max_tile_tokens;

/// The sizes that every stage uses.
struct Extents {
  Index query_blocks;
  Index key_blocks;
  Index key_dim;
  Index feature_dim;
  Index value_dim;
  Index group_size;    // query heads per kv head
  Index matrices;      // mixing matrices per unit: 1 shared, or one per query head
  Index tile_tokens;   // of the longest tile
  Index block_tokens;  // of the longest query block
  Index key_block_tokens;
  Index query_tokens;
  Index key_tokens;  // of the longest sequence

  Index summary_size() const { return checked_mul(feature_dim, value_dim); }
  /// Distance between summaries: an odd number of cache lines, so that the same element of many
  /// summaries does not map to the same cache set.
  Index summary_stride() const {
    constexpr Index line = 16;
    return checked_mul(ceil_div(summary_size(), line) | 1, line);
  }

  MHLA_ONCE_A_CALL explicit Extents(const Problem& problem, Index max_tokens = max_tile_tokens,
                                    TilesOf tiles_of = TilesOf::block)
      : query_blocks(problem.query_blocks),
        key_blocks(problem.key_blocks),
        key_dim(problem.shape.key_dim),
        feature_dim(problem.feature_dim),
        value_dim(problem.shape.value_dim),
        group_size(problem.shape.group_size()),
        matrices(problem.shape.mix_heads == 1 ? (std::min)(Index{1}, group_size) : group_size),
        block_tokens(problem.query_grid.block_tokens()),
        key_block_tokens(problem.key_grid.block_tokens()),
        query_tokens(problem.shape.query_tokens),
        key_tokens(problem.key_grid.num_tokens()) {
    const Index longest = tiles_of == TilesOf::block
                              ? (std::max)(block_tokens, key_block_tokens)
                              : (std::max)(problem.query_grid.num_tokens(), key_tokens);
    tile_tokens = (std::min)(longest, max_tokens);
  }
};

}  // namespace cpu

MHLA_NAMESPACE_END
