// SPDX-License-Identifier: MIT
// Tokens of a tensor, tile by tile, found through the block table.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/fused/tile.cuh>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Decomposes a block's number, fastest index first. Both numbers are below 2^31: 64-bit division
/// would be several times slower.
struct BlockIndices {
  std::uint32_t rest;

  MHLA_DEVICE explicit BlockIndices(const Block& block)
      : rest(static_cast<std::uint32_t>(block.number)) {}
  MHLA_DEVICE int next(Index extent) {
    const auto divisor = static_cast<std::uint32_t>(extent);
    const std::uint32_t index = rest % divisor;
    rest /= divisor;
    return static_cast<int>(index);
  }
};

/// Entries [begin, end) of the block table, which lists the blocks of one head and batch item in
/// sequence.
struct TokenRange {
  Index item;
  Index head;
  Index begin;
  Index end;

  /// Those of one block.
  MHLA_DEVICE static TokenRange of_block(const BlockTable& table, Index item, Index head,
                                         Index block) {
    return {item, head, block * table.block_tokens, (block + 1) * table.block_tokens};
  }
  MHLA_DEVICE TokenRange from(Index first) const { return {item, head, first, end}; }
};

/// The token of a range's row r; absent past its end.
MHLA_DEVICE Place place_of(const BlockTable& table, const TokenRange& range, int r) {
  const Index entry = range.begin + r;
  if (entry >= range.end) return {-1, 0};
  const Place found = machine::load_from(table.places.data + entry);
  if (found.token >= 0 && table.mask.data != nullptr &&
      machine::load_from(&table.mask(range.item, found.token)) == 0)
    return {-1, 0};
  return found;
}

/// A tensor [batch, heads, tokens, dim], with the block table of its tokens.
template <class T>
struct Tokens {
  TensorView<T, 4> tensor;
  BlockTable table;
  bool aligned;  // every row is contiguous and starts at a multiple of 16 bytes

  MHLA_DEVICE TensorRow<T> row(const TokenRange& range, int r) const {
    const Place place = place_of(table, range, r);
    if (place.token < 0) return {tensor.data, 1, false};
    return {&tensor(range.item, range.head, place.token, 0), tensor.stride[3], true};
  }
};

template <class T>
Tokens<T> tokens(const TensorView<T, 4>& tensor, const BlockTable& table) {
  bool aligned = reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 && tensor.stride[3] == 1;
  for (int axis = 0; axis < 3; ++axis)
    aligned = aligned && (tensor.extent[axis] <= 1 || tensor.stride[axis] % chunk_size == 0);
  return {tensor, table, aligned};
}

/// Asynchronously copies the first tokens of a range into a tile; rows without one are zero.
template <int Threads, class T, int Rows, int Cols>
MHLA_DEVICE void copy_tokens(const Block& block, const Tokens<const T>& from,
                             const TokenRange& range, const Tile<Rows, Cols>& tile,
                             int first_column = 0) {
  copy_rows<Threads, T>(block, tile, from.aligned, [&](int r) {
    TensorRow<const T> row = from.row(range, r);
    if (row.present) row.data += first_column * row.step;
    return row;
  });
}

/// Stores a tile's rows to the first tokens of a range.
template <int Threads, class T, int Rows, int Cols>
MHLA_DEVICE void store_tokens(const Block& block, const Tile<Rows, Cols>& tile, const Tokens<T>& to,
                              const TokenRange& range, Update update, int first_column = 0) {
  store_rows<Threads, T>(block, tile, to.aligned, update, [&](int r) {
    TensorRow<T> row = to.row(range, r);
    if (row.present) row.data += first_column * row.step;
    return row;
  });
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
