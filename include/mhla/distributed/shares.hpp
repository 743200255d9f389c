// SPDX-License-Identifier: MIT
// Which blocks of a sequence each rank has, and which blocks' sums it reads.
#pragma once

#include <mhla/distributed/communicator.hpp>
#include <mhla/stages/calls.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup distributed
/// \{

/// The blocks of every rank, in the order of ranks and of the sequence; some may have none.
using Shares = std::vector<BlockRange>;

/// \cond INTERNAL
// One of `pieces` of a share, which differ by one block at most: the first have more.
inline BlockRange piece_of(const BlockRange& share, Index piece, Index pieces) {
  const Index begin = even_split(share.count, pieces, piece);
  return {share.first + begin, even_split(share.count, pieces, piece + 1) - begin};
}
/// \endcond

/// Shares that differ by one at most; the first ranks have more.
/// \throws ShapeError if blocks < 0 or ranks < 1.
inline Shares equal_shares(Index blocks, Index ranks) {
  if (blocks < 0 || ranks < 1)
    throw ShapeError(
        {"mhla: equal_shares: ", blocks, " blocks cannot be shared by ", ranks, " ranks"});
  Shares shares;
  for (Index r = 0; r < ranks; ++r) shares.push_back(piece_of({0, blocks}, r, ranks));
  return shares;
}

/// Equal shares of a call's query blocks; of a packed batch, of the blocks of all sequences end to
/// end. With RecurrentMixing they are rounded to boundaries that SequenceParallel accepts,
/// multiples of 16 blocks of a sequence. \throws ShapeError also if variant and shape do not fit.
template <AttentionVariant V>
Shares equal_shares(const V& attention, const Shape& shape, Index ranks) {
  const auto list = query_list(attention, checked_problem(attention, shape));
  Shares shares = equal_shares(list.num_blocks(), ranks);
  if constexpr (!is_structured<V>) return shares;
  constexpr Index chunk = RecurrentMixing::chunk;
  for (std::size_t r = 1; r < shares.size(); ++r) {
    Index begin = shares[r].first;
    if (const Index past = list.block_in_sequence(begin) % chunk; past > 0) {
      const Index next = (std::min)(begin - past + chunk, list.sequences_of({begin, 1}).end());
      begin = past <= next - begin ? begin - past : next;
    }
    shares[r] = {begin, shares[r].end() - begin};
    shares[r - 1].count = begin - shares[r - 1].first;
  }
  return shares;
}

/// The tokens of some blocks, as indices into the whole sequence in raster order: the order in
/// which a rank's tensors have them.
inline std::vector<Index> tokens_of(const Grid& grid, const BlockRange& blocks) {
  std::vector<Index> tokens;
  for (Index t = 0; t < grid.num_tokens(); ++t)
    if (grid.block_of(t) >= blocks.first && grid.block_of(t) < blocks.end()) tokens.push_back(t);
  return tokens;
}

/// \cond INTERNAL
template <class List>
std::vector<Index> tokens_of(const List& list, const BlockRange& blocks) {
  const GridPart part = part_of(list, blocks);
  return tokens_of(part.grid, part.blocks);
}

// Throws ShapeError unless `shares` cut [0, blocks) into a part for every rank.
inline void require_shares(const char* argument, const Shares& shares, Index blocks, Index ranks) {
  if (static_cast<Index>(shares.size()) != ranks)
    throw ShapeError({"mhla: ", argument, ": has shares for ", static_cast<Index>(shares.size()),
                      " ranks but there are ", ranks});
  Index end = 0;
  for (Index r = 0; r < ranks; ++r) {
    const BlockRange& share = shares[static_cast<std::size_t>(r)];
    if (share.first != end || share.count < 0)
      throw ShapeError({"mhla: ", argument, ": rank ", r, " has ", share.count,
                        " blocks from block ", share.first, " but must begin at ", end,
                        ", where the rank before it ends"});
    end = checked_add(end, share.count);
  }
  if (end != blocks)
    throw ShapeError({"mhla: ", argument, ": all shares together have ", end,
                      " blocks but the sequence has ", blocks});
}

// \throws ShapeError unless those of a recurrence begin where its chunks do. `list` has the blocks.
template <AttentionVariant V, class List>
void require_chunks(const char* argument, const Shares& shares, const List& list) {
  if constexpr (!is_structured<V>) return;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    const Index first = list.block_in_sequence(shares[r].first);
    if (first % RecurrentMixing::chunk != 0)
      throw ShapeError({"mhla: ", argument, ": rank ", static_cast<Index>(r), " begins at block ",
                        first, is_batch_layout<V> ? " of a sequence" : "",
                        " but must begin at a multiple of ", RecurrentMixing::chunk,
                        " with RecurrentMixing"});
  }
}

MHLA_NO_SUCH_CALL(Shares equal_shares,
                  "mhla: call equal_shares(blocks, ranks) or equal_shares(attention, shape, ranks) "
                  "with an mhla::Shape")

// Which of `all` blocks a rank reads rows of that has `own` ones: under a causality those of keys
// before them, and those of queries after them.
template <class V>
BlockRange blocks_read(const BlockRange& own, const BlockRange& all, bool of_queries) {
  if (is_structured<V>) return own;  // and states
  const Index first = is_causal<V> && of_queries ? own.first : all.first;
  const Index end = is_causal<V> && !of_queries ? own.end() : all.end();
  return {first, end - first};
}

// The blocks that are in both.
inline BlockRange common(const BlockRange& a, const BlockRange& b) {
  const Index first = (std::max)(a.first, b.first);
  return {first, (std::max)(Index{0}, (std::min)(a.end(), b.end()) - first)};
}
/// \endcond

/// \}

MHLA_NAMESPACE_END
