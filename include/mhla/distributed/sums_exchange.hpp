// SPDX-License-Identifier: MIT
// Rows of sums, one for each block (mhla/stages.hpp), from the ranks that have made them to those
// that read them.
#pragma once

#include <cstddef>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/shares.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/sums_layout.hpp>
#include <vector>

MHLA_NAMESPACE_BEGIN

/// \addtogroup distributed
/// \{

/// \cond INTERNAL
// A row as it travels, rounded: all S, then all z.
template <class A>
void round_row(const SumsLayout& of, const A* row, std::byte* to) {
  auto* rounded = reinterpret_cast<BFloat16*>(to);
  auto* exact = reinterpret_cast<A*>(to + of.bytes<A>(Wire::bfloat16)) - of.count * of.key_sum;
  for (Index i = 0; i < of.count; ++i, row += of.summary + of.key_sum) {
    for (Index c = 0; c < of.summary; ++c) store(*rounded++, static_cast<float>(row[c]));
    for (Index c = 0; c < of.key_sum; ++c) *exact++ = row[of.summary + c];
  }
}
template <class A>
void widen_row(const SumsLayout& of, const std::byte* from, A* row) {
  const auto* rounded = reinterpret_cast<const BFloat16*>(from);
  const auto* exact =
      reinterpret_cast<const A*>(from + of.bytes<A>(Wire::bfloat16)) - of.count * of.key_sum;
  for (Index i = 0; i < of.count; ++i, row += of.summary + of.key_sum) {
    for (Index c = 0; c < of.summary; ++c) row[c] = static_cast<A>(load(*rounded++));
    for (Index c = 0; c < of.key_sum; ++c) row[of.summary + c] = *exact++;
  }
}

// Rounds rows into `to`, or widens them from there; on a GPU see cuda_distributed.hpp.
template <class S, class Executor, class A>
void round_rows(const S&, const Executor& executor, const SumsLayout& of,
                const TensorView<A, 2>& rows, std::byte* to) {
  const Index bytes = of.bytes<A>(Wire::bfloat16);
  executor.parallel_for(rows.extent[0],
                        [&](Index row, Index) { round_row(of, &rows(row, 0), to + row * bytes); });
}
template <class S, class Executor, class A>
void widen_rows(const S&, const Executor& executor, const SumsLayout& of, const std::byte* from,
                const TensorView<A, 2>& rows) {
  const Index bytes = of.bytes<A>(Wire::bfloat16);
  executor.parallel_for(
      rows.extent[0], [&](Index row, Index) { widen_row(of, from + row * bytes, &rows(row, 0)); });
}

// Whose rows a rank reads, beside its own.
enum class Others { all, earlier, later };

// Which blocks a rank has rows of: consecutive ranks'.
inline BlockRange blocks_read(const Shares& shares, Index rank, Others others) {
  const BlockRange own = shares[static_cast<std::size_t>(rank)];
  const Index first = others == Others::later ? own.first : 0;
  const Index end = others == Others::earlier ? own.end() : shares.back().end();
  return {first, end - first};
}

// Fills in the rows of other ranks' blocks: `rows` are those of blocks_read, `buffer` takes their
// bytes unless the wire is exact.
template <class S, Communicator C, class A, class Executor>
void exchange_sums(const S& stages, const C& communicator, const Executor& executor,
                   const Shares& shares, Others others, const SumsLayout& layout, Wire wire,
                   const TensorView<A, 2>& rows, Span<std::byte> buffer) {
  const Index ranks = communicator.size();
  const Index rank = communicator.rank();
  const BlockRange read = blocks_read(shares, rank, others);
  const Index row_bytes = layout.bytes<A>(wire);
  const bool rounds = wire == Wire::bfloat16;
  auto* const bytes = rounds ? buffer.data : reinterpret_cast<std::byte*>(rows.data);
  const auto part_of = [&](Index r) -> Part {
    const BlockRange& share = shares[static_cast<std::size_t>(r)];
    return {(share.first - read.first) * row_bytes, share.count * row_bytes};
  };
  const Part own = part_of(rank);
  const BlockRange& share = shares[static_cast<std::size_t>(rank)];
  if (rounds) {
    TensorView<A, 2> own_rows = rows;
    if (rows.data != nullptr) own_rows.data += (share.first - read.first) * rows.stride[0];
    own_rows.extent[0] = share.count;
    round_rows(stages, executor, layout, own_rows, bytes + own.first);
  }

  std::vector<Part> to(static_cast<std::size_t>(ranks));
  std::vector<Part> from(static_cast<std::size_t>(ranks));
  for (Index r = 0; r < ranks; ++r) {
    const bool reads = others == Others::all || (others == Others::earlier ? r < rank : r > rank);
    const bool is_read = others == Others::all || (others == Others::earlier ? r > rank : r < rank);
    if (reads || r == rank) from[static_cast<std::size_t>(r)] = part_of(r);
    if (is_read) to[static_cast<std::size_t>(r)] = {0, own.bytes};
  }
  if (others == Others::all) {
    communicator.all_gather(bytes + own.first, bytes, Span<const Part>{from.data(), ranks});
  } else {
    from[static_cast<std::size_t>(rank)] = {};
    communicator.all_to_all(bytes + own.first, Span<const Part>{to.data(), ranks}, bytes,
                            Span<const Part>{from.data(), ranks});
  }
  if (rounds) widen_rows(stages, executor, layout, bytes, rows);
}
/// \endcond

/// \}

MHLA_NAMESPACE_END
