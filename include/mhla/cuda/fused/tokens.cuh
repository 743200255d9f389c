// SPDX-License-Identifier: MIT
// Tokens of a tensor, tile by tile, found through the block table.
#pragma once

#include <mhla/cuda/chip/row_units.cuh>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/tables.hpp>

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
/// sequence. All numbers are below 2^31: in loops over tiles 64 bits would take twice the
/// registers.
struct TokenRange {
  int item;
  int head;
  int begin;
  int end;

  MHLA_DEVICE TokenRange(Index of_item, Index of_head, Index from, Index to)
      : item(static_cast<int>(of_item)),
        head(static_cast<int>(of_head)),
        begin(static_cast<int>(from)),
        end(static_cast<int>(to)) {}

  /// Those of one block.
  MHLA_DEVICE static TokenRange of_block(const BlockTable& table, Index item, Index head,
                                         Index block) {
    return {item, head, block * table.block_tokens, (block + 1) * table.block_tokens};
  }
  MHLA_DEVICE TokenRange from(Index first) const { return {item, head, first, end}; }
};

/// The tokens of a range's rows; -1 if one is absent.
struct RangeTokens {
  const Place* places;
  int begin;  // the range's first entry
  int left;   // entries
  bool is_masked;
  const std::uint8_t* mask;  // of the batch item
  int mask_step;

  MHLA_DEVICE RangeTokens(const BlockTable& table, const TokenRange& range)
      : places(table.places.data),
        begin(range.begin),
        left(range.end - range.begin),
        is_masked(table.mask.data != nullptr),
        mask(table.mask.data + Index{range.item} * table.mask.stride[0]),
        mask_step(static_cast<int>(table.mask.stride[1])) {}

  MHLA_DEVICE int unmasked(int r) const {
    return r < left ? machine::load_from(&places[begin + r].token) : -1;
  }
  MHLA_DEVICE Place place(int r) const {
    return r < left ? machine::load_from(&places[begin + r]) : absent;
  }
  MHLA_DEVICE bool hides(int token) const {
    return is_masked && token != absent.token &&
           machine::load_from(mask + machine::wide_product(token, mask_step)) == 0;
  }
  MHLA_DEVICE int operator()(int r) const {
    const int token = unmasked(r);
    return hides(token) ? -1 : token;
  }
};

/// Runs a body for `items` items of the batch, on as many thread blocks as its blocks(items) says.
template <class Body>
void run_over_items(const CudaDevice& device, Index items, const Body& body) {
  machine::run(device, body.blocks(items), body);
}

/// A tensor [batch, heads, tokens, dim], with the block table of its tokens.
template <class T>
struct Tokens {
  TensorView<T, 4> tensor;
  BlockTable table;
  bool aligned;            // every row is contiguous and starts at a multiple of 16 bytes
  std::int32_t row_bytes;  // then: from token to token

  /// Whether rows are aligned and none is masked.
  MHLA_DEVICE bool is_plain() const { return aligned && table.mask.data == nullptr; }

  /// row(r, c) of a range, from `column` + c on, for a tensor that is plain, or any.
  template <bool plain>
  MHLA_DEVICE auto rows(const TokenRange& range, int column) const {
    T* const head = &tensor(range.item, range.head, 0, column);
    const RangeTokens tokens_of(table, range);
    if constexpr (plain) {
      return [tokens_of, head, row_stride = row_bytes](int r, int c) -> TensorRow<T> {
        // One wide multiplication by a 32-bit number of bytes.
        using Bytes = std::conditional_t<std::is_const_v<T>, const char, char>;
        const int token = tokens_of.unmasked(r);
        Bytes* const from =
            reinterpret_cast<Bytes*>(head + c) + machine::wide_product(token, row_stride);
        return {reinterpret_cast<T*>(from), token != absent.token};
      };
    } else {
      return [tokens_of, head, token_stride = tensor.stride[2], step = tensor.stride[3]](
                 int r, int c) -> TensorRow<T> {
        const int token = tokens_of(r);
        return {head + token * token_stride + c * step, token != absent.token};
      };
    }
  }
};

template <class T>
Tokens<T> tokens(const TensorView<T, 4>& tensor, const BlockTable& table) {
  const Index bytes = tensor.extent[2] <= 1 ? 0 : tensor.stride[2] * Index{sizeof(T)};
  const bool fits = bytes > -0x80000000LL && bytes < 0x80000000LL;
  return {tensor, table, has_aligned_rows(tensor) && fits,
          fits ? static_cast<std::int32_t>(bytes) : 0};
}

/// Asynchronously copies the first tokens of a range into a tile; rows without one are zero.
template <int Threads, class T, int Rows, int Cols>
MHLA_DEVICE void copy_tokens(const Block& block, const Tokens<const T>& from,
                             const TokenRange& range, const Tile<Rows, Cols>& tile,
                             int first_column = 0) {
  if (from.is_plain()) {
    copy_rows<Threads, T>(block, tile, from.template rows<true>(range, first_column));
  } else if (from.aligned) {
    copy_rows_rolled<Threads, T>(block, tile, from.template rows<false>(range, first_column));
  } else {
    copy_elements<Threads, T>(block, tile, from.template rows<false>(range, first_column));
  }
}

/// Stores a tile's rows to the first tokens of a range.
template <int Threads, class T, int Rows, int Cols>
MHLA_DEVICE void store_tokens(const Block& block, const Tile<Rows, Cols>& tile, const Tokens<T>& to,
                              const TokenRange& range, Update update, int first_column = 0) {
  if (to.is_plain() && update == Update::overwrite) {
    store_rows<Threads, T>(block, tile, to.template rows<true>(range, first_column));
  } else {
    store_elements<Threads, T>(block, tile, update, to.template rows<false>(range, first_column));
  }
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
