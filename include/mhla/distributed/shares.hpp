// SPDX-License-Identifier: MIT
// Which blocks of a sequence each rank has, and how rows of sums, one for each block
// (mhla/stages.hpp), travel from the ranks that make them to those that read them.
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

// Rows of which every rank makes those of its share, and reads some.
template <class A>
struct SharedRows {
  const Shares& shares;
  const std::vector<BlockRange>& read;  // by every rank, among them its own
  SumsLayout layout;
  Wire wire;
  TensorView<A, 2> rows;   // that this rank reads
  Span<std::byte> buffer;  // holds them as they travel; unused if the wire is exact

  // The bytes of those of some blocks that rank `by` reads, counted from block `origin`.
  Part part(const BlockRange& blocks, Index by, Index origin) const {
    const BlockRange its = common(blocks, read[static_cast<std::size_t>(by)]);
    const Index bytes = layout.bytes<A>(wire);
    return {its.count > 0 ? (its.first - origin) * bytes : 0, its.count * bytes};
  }
  // Whether all ranks read all rows.
  bool read_by_all() const {
    const BlockRange all{0, shares.back().end()};
    return std::all_of(read.begin(), read.end(), [&](const auto& its) { return its == all; });
  }
};

// Calls make(blocks) for all pieces of this rank's share, whose rows then travel, and returns when
// `of.rows` are complete. All ranks have as many pieces, one if the communicator does not overlap.
template <class Kernels, Communicator C, class Executor, class A, class Make>
void exchange_sums(const C& communicator, const Executor& executor, const SharedRows<A>& of,
                   Index pieces, const Make& make) {
  const Index ranks = communicator.size();
  const Index rank = communicator.rank();
  const Index origin = of.read[static_cast<std::size_t>(rank)].first;
  const bool rounds = of.wire == Wire::bfloat16;
  auto* const bytes = rounds ? of.buffer.data : reinterpret_cast<std::byte*>(of.rows.data);
  const auto piece_at = [&](Index r, Index piece) {
    return piece_of(of.shares[static_cast<std::size_t>(r)], piece, pieces);
  };

  // Returns what to wait for, if the communicator overlaps.
  const auto send_piece = [&](Index piece) {
    const BlockRange own = piece_at(rank, piece);
    make(own);
    const Part mine = of.part(own, rank, origin);
    if (rounds && own.count > 0)
      Kernels::round_rows(executor, of.layout, rows_of(of.rows, {own.first - origin, own.count}),
                          bytes + mine.first);
    Parts to(ranks);
    Parts from(ranks);
    for (Index r = 0; r < ranks; ++r) {
      if (r == rank) continue;
      to[r] = of.part(own, r, own.first);
      from[r] = of.part(piece_at(r, piece), rank, origin);
    }
    const std::byte* const sent = bytes + mine.first;
    if constexpr (OverlapsMessages<C>) {
      return communicator.start_all_to_all(sent, to, bytes, from);
    } else if (of.read_by_all()) {
      from[rank] = mine;
      communicator.all_gather(sent, bytes, from);
    } else {
      communicator.all_to_all(sent, to, bytes, from);
    }
  };
  if constexpr (OverlapsMessages<C>) {
    std::vector<decltype(send_piece(0))> under_way;
    for (Index piece = 0; piece < pieces; ++piece) under_way.push_back(send_piece(piece));
    for (auto& message : under_way) message.wait();
  } else {
    send_piece(0);
  }
  if (rounds) Kernels::widen_rows(executor, of.layout, bytes, of.rows);
}
/// \endcond

/// \}

MHLA_NAMESPACE_END
