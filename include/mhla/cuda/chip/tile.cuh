// SPDX-License-Identifier: MIT
// Tiles: matrices of 16-bit elements in a thread block's shared memory, copies of rows of tensors
// and summaries to them, and pipelines of tiles through a ring of slots.
#pragma once

#include <bit>
#include <mhla/cuda/chip/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

using machine::Block;
using machine::Chunk;
using machine::Shared;

/// Elements of a chunk, the 16 bytes that copies and matrix loads move.
inline constexpr int chunk_size = 8;

/// Where a function is asked for, and nothing is to be done.
struct Ignore {
  template <class... Args>
  MHLA_DEVICE void operator()(const Args&...) const {}
};

/// The sum over so many adjacent lanes, which share a row, or are the whole warp. The warp meets.
template <int Lanes>
MHLA_DEVICE float sum_of_lanes(float value) {
  for (int mask = 1; mask < Lanes; mask *= 2) value += machine::exchange(value, mask);
  return value;
}

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
/// matrix load start in eight different groups of banks; or `is_dense`, without padding: the chunks
/// of a column of chunks are contiguous, row by row.
template <int Rows, int Cols, bool is_dense = false>
struct Tile {
  static_assert(Cols % chunk_size == 0);
  static constexpr int rows = Rows;
  static constexpr int cols = Cols;
  static constexpr int chunks = Cols / chunk_size;                  // of a row
  static constexpr int stride = is_dense ? 16 : tile_stride(Cols);  // bytes from row to row
  static constexpr int bytes = is_dense ? Rows * Cols * 2 : tile_bytes(Rows, Cols);
  static_assert(bytes % 16 == 0, "what follows would not be aligned for copies");
  static_assert(has_no_bank_conflicts<16>([](int lane) { return lane % 8 * stride; }),
                "eight rows of a matrix load would share banks");
  static_assert(has_no_bank_conflicts<4>([](int lane) { return lane / 4 * stride + lane % 4 * 4; }),
                "pairs of accumulators would share banks");

  Shared begin;

  MHLA_HOST_DEVICE static constexpr Shared chunk_offset(int row, int c) {
    return static_cast<Shared>(is_dense ? (c * Rows + row) * 16 : row * stride + c * 16);
  }
  MHLA_DEVICE Shared at(int row, int col) const {
    if constexpr (!is_dense) return begin + static_cast<Shared>(row * stride + col * 2);
    return begin + chunk_offset(row, col / chunk_size) + static_cast<Shared>(col % chunk_size * 2);
  }
  /// A chunk, or the last inside.
  MHLA_DEVICE Shared chunk(int row, int c) const {
    return begin + chunk_offset(row < Rows ? row : Rows - 1, c < chunks ? c : chunks - 1);
  }
};

/// Adjacent elements that are accessed together.
template <class U, int Count>
struct alignas(Count * sizeof(U)) Vector {
  U element[std::size_t{Count}];
};

/// A row of a tensor, from some column on; empty if its token is absent.
template <class T>
struct TensorRow {
  T* data;  // not null; neither read nor written if the row is absent
  bool present;
};

/// How the chunks of a tile are divided between threads. A few lanes share a row: eight, for 128
/// adjacent bytes, or as many as divide its chunks. A lane locates a row once for all its chunks.
template <int Threads, int Rows, int Cols>
struct ChunkShares {
  static constexpr int chunks = Cols / chunk_size;
  static constexpr int lanes = chunks % 8 == 0   ? 8
                               : chunks % 4 == 0 ? 4
                               : chunks % 3 == 0 ? 3
                               : chunks % 2 == 0 ? 2
                                                 : 1;
  /// Rows at once; where three lanes share one, threads are left over.
  static constexpr int step =
      lanes == 3 ? static_cast<int>(std::bit_floor(unsigned{Threads / 3})) : Threads / lanes;
  static constexpr int rows = (Rows + step - 1) / step;  // of a thread
  static_assert(Threads % lanes == 0 || lanes == 3);

  /// The row of the k-th lanes: the k-th, but where lanes that are served at once, of several rows,
  /// would then write to the same banks.
  MHLA_HOST_DEVICE static constexpr int row(int k) {
    constexpr int together = 8 / lanes;
    constexpr int stride = tile_stride(Cols) / 16;
    return lanes == 8   ? k
           : lanes == 3 ? 3 * stride * k % step
                        : k / 8 * 8 + k % together * lanes + k % 8 / together;
  }
  static_assert(has_no_bank_conflicts<16>([](int lane) {
                  return row(lane / lanes) * tile_stride(Cols) + lane % lanes * 16;
                }),
                "lanes would share banks");

  /// Calls f(n, row, chunk) for the thread's rows and the first of its chunks, which are `lanes`
  /// apart.
  template <class F>
  MHLA_DEVICE static void for_each(const Block& block, const F& f) {
    constexpr bool in_warp = 32 % lanes == 0;
    const int k =
        in_warp ? block.warp() * (32 / lanes) + block.lane() / lanes : block.thread / lanes;
    const int chunk = (in_warp ? block.lane() : block.thread) % lanes;
    if (step * lanes < Threads && k >= step) return;
    MHLA_DEVICE_UNROLL
    for (int n = 0; n < rows; ++n)
      if ((n + 1) * step <= Rows || n * step + row(k) < Rows) f(n, n * step + row(k), chunk);
  }
};

/// Starts asynchronous copies of rows into a tile; absent ones become zero. row(r, c) is the
/// TensorRow of row r in [0, rows) from column c on; all start at multiples of 16 bytes and are
/// contiguous. Rows are located first, so that the loads which that takes do not wait for one
/// another.
template <int Threads, class T, int Rows, int Cols, class Row>
MHLA_DEVICE void copy_rows(const Block& block, const Tile<Rows, Cols>& tile, const Row& row) {
  using Shares = ChunkShares<Threads, Rows, Cols>;
  TensorRow<const T> from[std::size_t{Shares::rows}];
  Shares::for_each(block, [&](int n, int r, int c) { from[n] = row(r, c * chunk_size); });
  Shares::for_each(block, [&](int n, int r, int first) {
    const Shared to = tile.begin + tile.chunk_offset(r, first);
    MHLA_DEVICE_UNROLL
    for (int c = 0; c < Shares::chunks; c += Shares::lanes)
      machine::copy_chunk(to + tile.chunk_offset(0, c), from[n].data + c * chunk_size,
                          from[n].present);
  });
}
/// Loads a tile row by row: for rows that take long to locate.
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
/// Loads a tile synchronously, for rows that are not aligned or not contiguous.
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
  using Shares = ChunkShares<Threads, Rows, Cols>;
  TensorRow<T> to[std::size_t{Shares::rows}];
  Shares::for_each(block, [&](int n, int r, int c) { to[n] = row(r, c * chunk_size); });
  Shares::for_each(block, [&](int n, int r, int first) {
    if (!to[n].present) return;
    MHLA_DEVICE_UNROLL
    for (int c = 0; c < Shares::chunks; c += Shares::lanes)
      machine::store_to(reinterpret_cast<Chunk*>(to[n].data + c * chunk_size),
                        machine::read<Chunk>(tile.begin + tile.chunk_offset(r, first + c)));
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

/// Pipelines tiles from memory through a ring of `Stages` slots: begin_copy(tile), then, once it
/// has arrived, landed(tile), a sync of the thread block, and use(tile).
template <int Stages, class BeginCopy, class Landed, class Use>
MHLA_DEVICE void for_each_tile(const Block& block, int tiles, const BeginCopy& begin_copy,
                               const Landed& landed, const Use& use) {
  const auto begin = [&](int tile) {
    if (tile < tiles) begin_copy(tile);
    machine::commit_copies();
  };
  block.sync();  // what was in the ring has been read
  for (int tile = 0; tile < Stages - 1; ++tile) begin(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    if constexpr (Stages == 1) {
      if (tile > 0) block.sync();
      begin(tile);
      machine::wait_for_copies<0>();
      block.sync();
    } else {
      machine::wait_for_copies<Stages - 2>();
      block.sync();  // this tile has landed, and the previous one has been read
      begin(tile + Stages - 1);
    }
    landed(tile);
    block.sync();
    use(tile);
  }
  machine::wait_for_copies<0>();
}

/// for_each_tile() by two teams of warps, with three slots and one sync for a tile: while one team
/// prepares a tile, by begin_copy() of the next one and landed(), the other use()s the previous
/// one.
template <class BeginCopy, class Landed, class Use>
MHLA_DEVICE void for_each_tile_in_teams(const Block& block, bool prepares, int tiles,
                                        const BeginCopy& begin_copy, const Landed& landed,
                                        const Use& use) {
  const auto begin = [&](int tile) {
    if (prepares && tile < tiles) begin_copy(tile);
    machine::commit_copies();
  };
  block.sync();  // what was in the ring has been read
  begin(0);
  for (int step = 0; step <= tiles; ++step) {
    machine::wait_for_copies<0>();
    block.sync();  // this tile has landed, the previous one is prepared, the one before was used
    begin(step + 1);
    if (prepares && step < tiles) landed(step);
    if (!prepares && step > 0) use(step - 1);
  }
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
