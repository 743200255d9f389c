// SPDX-License-Identifier: MIT
// The blocks of a call, listed: those of a sequence, which every batch item has, or of packed
// sequences, end to end.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/packed_blocks.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/variant.hpp>

MHLA_NAMESPACE_BEGIN

/// The blocks of one sequence: what PackedBlocks are of several.
struct GridBlocks {
  Grid grid;

  Index num_blocks() const { return grid.num_blocks(); }
  Index num_tokens(const BlockRange& range) const { return grid.num_tokens(range); }
  Index block_in_sequence(Index block) const { return block < num_blocks() ? block : 0; }
  BlockRange sequences_of(const BlockRange&) const { return {0, num_blocks()}; }
};

/// The query blocks of a checked call.
template <AttentionVariant V>
auto query_list(const V&, const Problem& problem) {
  return GridBlocks{problem.query_grid};
}
template <AttentionVariant V, class Offset>
auto query_list(const Packed<V, Offset>& packed, const Problem& problem) {
  return PackedBlocks(packed.offsets, problem.query_grid.block[2]);
}
/// Its key blocks.
template <AttentionVariant V>
auto key_list(const V& attention, const Problem& problem) {
  if constexpr (requires { attention.offsets; })
    return query_list(attention, problem);
  else
    return GridBlocks{problem.key_grid};
}

/// The tokens of some blocks of a grid.
struct GridPart {
  Grid grid;
  BlockRange blocks;

  Index size() const { return grid.num_tokens(blocks); }
};
/// Tokens [first, first + count) of a sequence.
inline GridPart consecutive_tokens(Index all, const BlockRange& tokens) {
  return {{{1, 1, all}, {1, 1, 1}}, tokens};
}

/// The tokens of some blocks of a list.
inline GridPart part_of(const GridBlocks& list, const BlockRange& blocks) {
  return {list.grid, blocks};
}
template <class Offset>
GridPart part_of(const PackedBlocks<Offset>& list, const BlockRange& blocks) {
  return consecutive_tokens(list.first_token(list.num_blocks()),
                            {list.first_token(blocks.first), list.num_tokens(blocks)});
}

MHLA_NAMESPACE_END
