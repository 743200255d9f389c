// SPDX-License-Identifier: MIT
// The blocks of a call, listed: those of a sequence, which every batch item has, or of packed
// sequences, end to end.
#pragma once

#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

/// The list of the blocks of packed sequences: those of sequence s are the ceil(tokens / block)
/// after the blocks of the sequences before it. Borrows offsets that never fall.
template <class Offset>
class PackedBlocks {
 public:
  PackedBlocks(Span<const Offset> offsets, Index block) : offsets_(offsets), block_(block) {}

  Index num_blocks() const {
    Index blocks = 0;
    for (Index s = 0; s < sequences(); ++s) blocks += blocks_of(s);
    return blocks;
  }
  /// For num_blocks(), the number of all tokens.
  Index first_token(Index block) const {
    const Place place = place_of(block);
    return begin(place.sequence) + place.block * block_;
  }
  Index num_tokens(const BlockRange& range) const {
    return first_token(range.end()) - first_token(range.first);
  }
  /// A block's index within its sequence; 0 after the last block.
  Index block_in_sequence(Index block) const { return place_of(block).block; }
  /// All blocks of the sequences of which some are in `range`; none if it is empty.
  BlockRange sequences_of(const BlockRange& range) const {
    if (range.count == 0) return range;
    const Index first = range.first - block_in_sequence(range.first);
    const Place last = place_of(range.end() - 1);
    return {first, range.end() - 1 - last.block + blocks_of(last.sequence) - first};
  }

 private:
  struct Place {
    Index sequence;
    Index block;  // within it
  };

  Index sequences() const { return offsets_.size - 1; }
  Index begin(Index sequence) const { return static_cast<Index>(offsets_[sequence]); }
  Index blocks_of(Index sequence) const {
    return ceil_div(begin(sequence + 1) - begin(sequence), block_);
  }
  Place place_of(Index block) const {
    for (Index s = 0; s < sequences(); ++s) {
      const Index blocks = blocks_of(s);
      if (block < blocks) return {s, block};
      block -= blocks;
    }
    return {sequences(), 0};
  }

  Span<const Offset> offsets_;
  Index block_;
};

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
  if constexpr (is_packed<V>)
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
