// SPDX-License-Identifier: MIT
// Tiles: matrices of 16-bit elements in a thread block's shared memory, and copies of rows of
// tensors and summaries to them.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/tile_shape.hpp>
#include <type_traits>

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

  MHLA_HOST_DEVICE static constexpr Shared chunk_offset(int row, int c) {
    return static_cast<Shared>(row * stride + c * 16);
  }
  MHLA_DEVICE Shared at(int row, int col) const {
    return begin + static_cast<Shared>(row * stride + col * 2);
  }
  /// A chunk, or the last inside.
  MHLA_DEVICE Shared chunk(int row, int c) const {
    return begin + chunk_offset(row < Rows ? row : Rows - 1, c < chunks ? c : chunks - 1);
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

  MHLA_HOST_DEVICE static constexpr Shared chunk_offset(int row, int c) {
    return static_cast<Shared>((c * Rows + row) * 16);
  }
  MHLA_DEVICE Shared at(int row, int col) const {
    return begin + chunk_offset(row, col / chunk_size) + static_cast<Shared>(col % chunk_size * 2);
  }
  /// A chunk, or the last inside.
  MHLA_DEVICE Shared chunk(int row, int c) const {
    return begin + chunk_offset(row < Rows ? row : Rows - 1, c < chunks ? c : chunks - 1);
  }
};

/// A row of a tensor, from some column on; empty if its token is absent.
template <class T>
struct TensorRow {
  T* data;  // neither read nor written if the row is absent
  bool present;
};

/// A thread's share of the chunks of a tile: those of one column of chunks, rows Step apart.
template <int Rows, int Step>
struct ChunkShare {
  static constexpr int rows = (Rows + Step - 1) / Step;
  int chunk;
  int first;

  MHLA_DEVICE static constexpr int after(int n) { return n * Step; }
  /// Calls f(n, row) for each.
  template <class F>
  MHLA_DEVICE void for_each(const F& f) const {
    MHLA_DEVICE_UNROLL
    for (int n = 0; n < rows; ++n)
      if ((n + 1) * Step <= Rows || first + n * Step < Rows) f(n, first + n * Step);
  }
};
/// The largest one.
MHLA_HOST_DEVICE constexpr int power_of_two_in(int number) {
  int power = 1;
  while (2 * power <= number) power *= 2;
  return power;
}
/// Divides a Rows x Chunks tile between threads, as f(share): first a number of columns of chunks
/// that is a power of two, whose rows a thread finds without a division, then the others.
template <int Threads, int Rows, int Chunks, class F>
MHLA_DEVICE void share_chunks(const Block& block, const F& f, int first_chunk = 0) {
  constexpr int wide = power_of_two_in(Chunks);
  static_assert(Threads % wide == 0);
  f(ChunkShare<Rows, Threads / wide>{first_chunk + block.thread % wide, block.thread / wide});
  if constexpr (Chunks > wide)
    share_chunks<Threads, Rows, Chunks - wide>(block, f, first_chunk + wide);
}

/// Starts asynchronous copies of rows into a tile; absent ones become zero. row(r, c) is the
/// TensorRow of row r in [0, rows) from column c on; all start at multiples of 16 bytes and are
/// contiguous. Rows are
/// located first, so that the loads which that takes do not wait for one another.
template <int Threads, class T, int Rows, int Cols, class Row>
MHLA_DEVICE void copy_rows(const Block& block, const Tile<Rows, Cols>& tile, const Row& row) {
  using TileType = Tile<Rows, Cols>;
  share_chunks<Threads, Rows, TileType::chunks>(block, [&](const auto& share) {
    constexpr int rows = std::remove_cvref_t<decltype(share)>::rows;
    TensorRow<const T> from[std::size_t{rows}];
    share.for_each([&](int n, int r) { from[n] = row(r, share.chunk * chunk_size); });
    const Shared to = tile.begin + TileType::chunk_offset(share.first, share.chunk);
    share.for_each([&](int n, int) {
      machine::copy_chunk(to + TileType::chunk_offset(share.after(n), 0), from[n].data,
                          from[n].present);
    });
  });
}
/// The same, row by row: for rows that take long to locate.
template <int Threads, class T, int Rows, int Cols, class Row>
MHLA_DEVICE void copy_rows_rolled(const Block& block, const Tile<Rows, Cols>& tile,
                                  const Row& row) {
  constexpr int chunks = Tile<Rows, Cols>::chunks;
  MHLA_DEVICE_ROLLED
  for (int i = block.thread; i < Rows * chunks; i += Threads) {
    const TensorRow<const T> from = row(i / chunks, i % chunks * chunk_size);
    machine::copy_chunk(tile.begin + tile.chunk_offset(i / chunks, i % chunks), from.data,
                        from.present);
  }
}
/// The same, synchronously, for rows that are not aligned or not contiguous.
template <int Threads, class T, int Rows, int Cols, class Row>
MHLA_DEVICE void copy_elements(const Block& block, const Tile<Rows, Cols>& tile, const Row& row) {
  MHLA_DEVICE_ROLLED
  for (int i = block.thread; i < Rows * Cols; i += Threads) {
    const TensorRow<const T> from = row(i / Cols, i % Cols);
    machine::write<T>(tile.at(i / Cols, i % Cols),
                      from.present ? machine::load_from(from.data) : T{});
  }
}

/// The inverse of copy_rows: rows of a tile to the present rows of a tensor.
template <int Threads, class T, int Rows, int Cols, class Row>
MHLA_DEVICE void store_rows(const Block& block, const Tile<Rows, Cols>& tile, const Row& row) {
  using TileType = Tile<Rows, Cols>;
  share_chunks<Threads, Rows, TileType::chunks>(block, [&](const auto& share) {
    constexpr int rows = std::remove_cvref_t<decltype(share)>::rows;
    TensorRow<T> to[std::size_t{rows}];
    share.for_each([&](int n, int r) { to[n] = row(r, share.chunk * chunk_size); });
    const Shared from = tile.begin + TileType::chunk_offset(share.first, share.chunk);
    share.for_each([&](int n, int) {
      if (to[n].present)
        machine::store_to(reinterpret_cast<Chunk*>(to[n].data),
                          machine::read<Chunk>(from + TileType::chunk_offset(share.after(n), 0)));
    });
  });
}
/// The inverse of copy_elements. `update` adds to the tensor's values, with another rounding.
template <int Threads, class T, int Rows, int Cols, class Row>
MHLA_DEVICE void store_elements(const Block& block, const Tile<Rows, Cols>& tile, Update update,
                                const Row& row) {
  MHLA_DEVICE_ROLLED
  for (int i = block.thread; i < Rows * Cols; i += Threads) {
    const TensorRow<T> to = row(i / Cols, i % Cols);
    if (!to.present) continue;
    T value = machine::read<T>(tile.at(i / Cols, i % Cols));
    if (update == Update::accumulate) store(value, load(machine::load_from(to.data)) + load(value));
    machine::store_to(to.data, value);
  }
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
