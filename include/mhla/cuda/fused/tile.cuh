// SPDX-License-Identifier: MIT
// Tiles: matrices of 16-bit elements in a thread block's shared memory, and copies of rows of
// tensors and summaries to them.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/cuda/fused/tile_shape.hpp>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

using machine::Block;
using machine::Chunk;
using machine::Shared;

/// Elements of a chunk, the 16 bytes that copies and matrix loads move.
inline constexpr int chunk_size = 8;

/// Whether a warp's accesses to shared memory are free of bank conflicts. Each has `Size` bytes, a
/// multiple of 4, at at(lane); 128 bytes are served at once.
template <int Size, class At>
constexpr bool has_no_bank_conflicts(const At& at) {
  constexpr int together = 128 / Size;
  for (int first = 0; first < 32; first += together)
    for (int a = first; a < first + together; ++a)
      for (int b = first; b < a; ++b)
        if (at(a) != at(b) && at(a) / Size % together == at(b) / Size % together) return false;
  return true;
}

/// A matrix of 16-bit elements. Its rows are an odd number of chunks apart, so that eight rows of a
/// matrix load start in eight different groups of banks.
template <int Rows, int Cols>
struct Tile {
  static_assert(Cols % chunk_size == 0);
  static constexpr int rows = Rows;
  static constexpr int cols = Cols;
  static constexpr int chunks = Cols / chunk_size;  // of a row
  static constexpr int stride = tile_stride(Cols);  // bytes
  static constexpr int bytes = tile_bytes(Rows, Cols);
  static_assert(bytes % 16 == 0, "what follows would not be aligned for copies");
  static_assert(has_no_bank_conflicts<16>([](int lane) { return lane % 8 * stride; }),
                "eight rows of a matrix load would share banks");
  static_assert(has_no_bank_conflicts<4>([](int lane) { return lane / 4 * stride + lane % 4 * 4; }),
                "pairs of accumulators would share banks");

  Shared begin;

  MHLA_DEVICE Shared at(int row, int col) const {
    return begin + static_cast<Shared>(row * stride + col * 2);
  }
  /// Start of a matrix load; places outside, whose products are not used, are clamped to the last
  /// inside.
  MHLA_DEVICE Shared chunk(int row, int c) const {
    const int r = row < Rows ? row : Rows - 1;
    const int inside = c < chunks ? c : chunks - 1;
    return begin + static_cast<Shared>(r * stride + inside * 16);
  }
};

/// The same without padding: the chunks of a column of chunks are contiguous, row by row, so that
/// eight rows of a matrix load, and pairs of accumulators, are adjacent.
template <int Rows, int Cols>
struct DenseTile {
  static_assert(Cols % chunk_size == 0);
  static constexpr int rows = Rows;
  static constexpr int cols = Cols;
  static constexpr int chunks = Cols / chunk_size;  // of a row
  static constexpr int all_chunks = Rows * chunks;
  static constexpr int bytes = Rows * Cols * 2;

  Shared begin;

  MHLA_DEVICE Shared at(int row, int col) const {
    return chunk(row, col / chunk_size) + static_cast<Shared>(col % chunk_size * 2);
  }
  /// As in Tile.
  MHLA_DEVICE Shared chunk(int row, int c) const {
    const int r = row < Rows ? row : Rows - 1;
    const int inside = c < chunks ? c : chunks - 1;
    return begin + static_cast<Shared>((inside * Rows + r) * 16);
  }
};

/// A row of a tensor: elements `step` apart; empty if its token is absent.
template <class T>
struct TensorRow {
  T* data;  // neither read nor written if the row is absent
  Index step;
  bool present;
};

/// Copies rows into a tile asynchronously; absent ones become zero. row(r) is the TensorRow of row
/// r in [0, rows). With `aligned`, all start at multiples of 16 bytes and are contiguous; otherwise
/// they are copied through registers, synchronously.
template <int Threads, class T, int Rows, int Cols, class Row>
MHLA_DEVICE void copy_rows(const Block& block, const Tile<Rows, Cols>& tile, bool aligned,
                           const Row& row) {
  constexpr int chunks = Tile<Rows, Cols>::chunks;
  for (int i = block.thread; i < Rows * chunks; i += Threads) {
    const int r = i / chunks;
    const int c = i % chunks;
    const TensorRow<const T> from = row(r);
    const Index first = c * chunk_size * from.step;
    const Shared to = tile.chunk(r, c);
    if (aligned) {
      machine::copy_chunk(to, from.present ? from.data + first : from.data, from.present);
      continue;
    }
    for (int e = 0; e < chunk_size; ++e)
      machine::write<T>(to + static_cast<Shared>(e * 2),
                        from.present ? machine::load_from(from.data + first + e * from.step) : T{});
  }
}

/// The inverse: rows of a tile to the present rows of a tensor. `update` adds to their values, with
/// another rounding.
template <int Threads, class T, int Rows, int Cols, class Row>
MHLA_DEVICE void store_rows(const Block& block, const Tile<Rows, Cols>& tile, bool aligned,
                            Update update, const Row& row) {
  constexpr int chunks = Tile<Rows, Cols>::chunks;
  for (int i = block.thread; i < Rows * chunks; i += Threads) {
    const int r = i / chunks;
    const int c = i % chunks;
    const TensorRow<T> to = row(r);
    if (!to.present) continue;
    const Index first = c * chunk_size * to.step;
    const Shared from = tile.chunk(r, c);
    if (aligned && update == Update::overwrite) {
      machine::store_to(reinterpret_cast<Chunk*>(to.data + first), machine::read<Chunk>(from));
      continue;
    }
    for (int e = 0; e < chunk_size; ++e) {
      T* const element = to.data + first + e * to.step;
      T value = machine::read<T>(from + static_cast<Shared>(e * 2));
      if (update == Update::accumulate)
        store(value, load(machine::load_from(element)) + load(value));
      machine::store_to(element, value);
    }
  }
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
