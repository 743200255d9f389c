// SPDX-License-Identifier: MIT
// Rows of sums, one for each block (mhla/stages.hpp), from the ranks that have made them to those
// that read them.
#pragma once

#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/shares.hpp>
#include <mhla/stages/calls.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup distributed
/// \{

/// \cond INTERNAL
// Which of `all` blocks a rank reads rows of that has `own` ones: under a causality those of keys
// before them, and those of queries after them.
template <class V>
BlockRange blocks_read(const BlockRange& own, const BlockRange& all, bool of_queries) {
  if (is_structured<V>) return own;  // and states
  const Index first = is_causal<V> && of_queries ? own.first : all.first;
  const Index end = is_causal<V> && !of_queries ? own.end() : all.end();
  return {first, end - first};
}

// S travels in so many pieces, if the next can be made meanwhile. dS~ does not: each piece would
// transpose all summaries again, a twentieth of the backward pass.
template <Communicator C>
Index pieces_of_summaries(const C& communicator) {
  return OverlapsMessages<C> && communicator.size() > 1 ? 4 : 1;
}
// A rank's blocks whose rows travel together.
inline BlockRange piece_of(const BlockRange& share, Index piece, Index pieces) {
  const Index begin = even_split(share.count, pieces, piece);
  return {share.first + begin, even_split(share.count, pieces, piece + 1) - begin};
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
  Span<std::byte> buffer;  // as many bytes, unless the wire is exact

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
