// SPDX-License-Identifier: MIT
// Block summaries (arXiv 2601.07832, eq. 3), a thread block per block and slice of value columns:
//
//   S = sum_t w_t phi^r(x_t) v_t^T     z = sum_t c_t phi(x_t)
//
// over the tokens t of a block, phi^r the rotated features. Forward: x = k, v = v, w = c = 1: S_b
// and z_b. Backward: x = q, v = dy, w = 1 / den, c the gradients of the denominators: dS~_i and
// dz~_i, over all query heads that read the mixed summary.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/product.cuh>
#include <mhla/cuda/fused/tile.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// 16-bit summaries in memory, [units, blocks, matrices, KeyDim, ValueDim], times a power of two;
/// in `Parts` planes, whose sum is the number: its rounded value and, with two, the rounding error.
template <class T>
struct Summaries {
  T* data;
  Index plane;  // elements of one
  float scale;
};

/// Stores two neighbouring elements.
template <class T, int Parts>
MHLA_DEVICE void store_summary_pair(const Summaries<T>& summaries, Index at, float first,
                                    float second) {
  first *= summaries.scale;
  second *= summaries.scale;
  MHLA_DEVICE_UNROLL
  for (int part = 0; part < Parts; ++part) {
    const std::uint32_t rounded = machine::rounded_pair<T>(first, second);
    machine::store_to(
        reinterpret_cast<std::uint32_t*>(summaries.data + part * summaries.plane + at), rounded);
    first -= machine::first_of<T>(rounded);
    second -= machine::second_of<T>(rounded);
  }
}

/// Which query heads share a summary: `matrices` of them, or groups, per kv head.
struct Sharing {
  Index kv_heads;
  Index heads;     // of the tokens, per kv head
  Index matrices;  // summaries per kv head and block

  MHLA_DEVICE Index heads_of_matrix() const { return heads / matrices; }
};

/// Sums each column's features over its threads, in a fixed order: over a warp's four rows, then
/// over warps, by way of `scratch`, [warps, KeyDim] in float. Calls store(col, sum) for every
/// column. Synchronizes the thread block.
template <int Threads, int KeyDim, class Store>
MHLA_DEVICE void add_up_key_sums(const Block& block,
                                 const float (&key_sum)[std::size_t{Quads<KeyDim>::of_lane}][4],
                                 Shared scratch, const Store& store) {
  const auto of_warp = [&](int warp, int col) {
    return scratch + static_cast<Shared>((warp * KeyDim + col) * 4);
  };
  MHLA_DEVICE_UNROLL
  for (int i = 0; i < Quads<KeyDim>::of_lane; ++i) {
    const int n = i * Quads<KeyDim>::lanes + block.lane() % Quads<KeyDim>::lanes;
    MHLA_DEVICE_UNROLL
    for (int e = 0; e < 4; ++e) {
      float sum = key_sum[i][e];
      for (int mask = Quads<KeyDim>::lanes; mask < 32; mask *= 2)
        sum += machine::exchange(sum, mask);
      const int col = Quads<KeyDim>::column(n) + e % 2 + e / 2 * (KeyDim / 2);
      if (block.lane() < Quads<KeyDim>::lanes && n < Quads<KeyDim>::count)
        machine::write<float>(of_warp(block.warp(), col), sum);
    }
  }
  block.sync();
  for (int col = block.thread; col < KeyDim; col += Threads) {
    float sum = 0;
    for (int warp = 0; warp < Threads / 32; ++warp) sum += machine::read<float>(of_warp(warp, col));
    store(col, sum);
  }
}

template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, int Parts, bool Sums>
struct SummarizeBlocks {
  static constexpr int threads = 256;
  static constexpr int min_blocks_per_sm = KeyDim > 128 ? 1 : 2;
  static constexpr int rows = tile_rows(KeyDim);
  static constexpr int slice = summary_slice(ValueDim);
  static constexpr int slices = ValueDim / slice;
  static constexpr int stages = 2;
  using KeyTile = Tile<rows, KeyDim>;
  using ValueTile = Tile<rows, slice>;
  static constexpr int stage_bytes = KeyTile::bytes + ValueTile::bytes;
  static constexpr int warps = threads / 32;
  static constexpr int shared_bytes = std::max(stages * stage_bytes, warps* KeyDim * 4);
  static_assert(shared_bytes <= machine::max_shared_bytes);

  FeatureTokens<T, Map, Rotates> x;
  Tokens<const T> v;
  Sharing sharing;
  const float* weights;      // w, [units, blocks, heads, block tokens]; null: all 1
  const float* sum_weights;  // c
  float weight_scale;        // a power of two that scales w before phi is rounded with it
  Summaries<T> summaries;
  float* sums;  // [units, blocks, matrices, KeyDim]

  /// The tile of a ring's slot.
  MHLA_DEVICE static KeyTile key_tile(int slot) {
    return {static_cast<Shared>(slot * stage_bytes)};
  }
  MHLA_DEVICE static ValueTile value_tile(int slot) {
    return {static_cast<Shared>(slot * stage_bytes + KeyTile::bytes)};
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    summarize(block, [] { machine::wait_for_earlier_kernels(); });
  }

  /// For a unit's n-th thread block of `of_unit()`.
  MHLA_DEVICE Index number_of(Index unit, Index n) const {
    return unit % sharing.kv_heads + (unit / sharing.kv_heads * of_unit() + n) * sharing.kv_heads;
  }
  MHLA_HOST_DEVICE Index of_unit() const { return sharing.matrices * slices * x.x.table.blocks; }

  /// For block.number. Calls `wait` before anything is read or written; the summaries of unit n go
  /// where those of unit n + shift would.
  template <class Wait>
  MHLA_DEVICE void summarize(const Block& block, const Wait& wait, Index shift = 0) const {
    const BlockTable& table = x.x.table;
    BlockIndices indices(block);
    const int kv_head = indices.next(sharing.kv_heads);
    const int matrix = indices.next(sharing.matrices);
    const int column = indices.next(slices) * slice;
    const int b = indices.next(table.blocks);
    const int item = static_cast<int>(indices.rest);
    const Index unit = item * sharing.kv_heads + kv_head;

    // Tiles of the block, head by head.
    const int tiles_of_head = static_cast<int>(ceil_div(table.block_tokens, Index{rows}));
    const int tiles = tiles_of_head * static_cast<int>(sharing.heads_of_matrix());
    const auto head_of = [&](int tile) {  // among those of the kv head
      return matrix * sharing.heads_of_matrix() + tile / tiles_of_head;
    };
    const auto range_of = [&](int tile) {
      const TokenRange all =
          TokenRange::of_block(table, item, kv_head * sharing.heads + head_of(tile), b);
      return all.from(all.begin + tile % tiles_of_head * rows);
    };
    const auto begin_copy = [&](int tile) {
      if (tile < tiles) {
        copy_tokens<threads>(block, x.x, range_of(tile), key_tile(tile % stages));
        copy_tokens<threads>(block, v, range_of(tile), value_tile(tile % stages), column);
      }
      machine::commit_copies();
    };

    wait();  // this may be the first kernel of a call
    Accumulators<KeyDim, slice, 4, 2> sum;
    float key_sum[std::size_t{Quads<KeyDim>::of_lane}][4] = {};
    for (int tile = 0; tile < stages - 1; ++tile) begin_copy(tile);
    for (int tile = 0; tile < tiles; ++tile) {
      machine::wait_for_copies<stages - 2>();
      block.sync();  // this tile has landed, and the previous one has been read
      begin_copy(tile + stages - 1);
      const TokenRange range = range_of(tile);
      const Index of_unit = (unit * table.blocks + b) * sharing.heads + head_of(tile);
      const Index first = of_unit * table.block_tokens + tile % tiles_of_head * rows;
      const auto at = [&](const float* from, int row) {
        return from == nullptr ? 1.0f : machine::load_from(from + first + row);
      };
      float sum_weight = 0;  // of features that are already weighted
      make_features<threads>(
          block, x, range, key_tile(tile % stages),
          [&](int row) {
            const float weight = weight_scale * at(weights, row);
            if constexpr (Sums) {
              const float of_sum = at(sum_weights, row);
              sum_weight = weight == 0 ? 0.0f : of_sum / weight;
            }
            return weight;
          },
          [&](int, int, int i, const float(&quad)[4]) {
            if constexpr (Sums)
              for (int e = 0; e < 4; ++e) key_sum[i][e] += sum_weight * quad[e];
          },
          [](int) {});
      block.sync();
      multiply_add<T, rows, Stored::transposed, Stored::straight>(
          block, sum, key_tile(tile % stages), value_tile(tile % stages));
    }
    machine::wait_for_copies<0>();

    const Index summary = ((unit + shift) * table.blocks + b) * sharing.matrices + matrix;
    const Index first = summary * KeyDim * ValueDim + column;
    const Summaries<T> unweighed{summaries.data, summaries.plane, summaries.scale / weight_scale};
    sum.for_each_pair(block, [&](int row, int col, float one, float next) {
      store_summary_pair<T, Parts>(unweighed, first + row * ValueDim + col, one, next);
    });
    if constexpr (Sums) {
      if (column == 0) {
        block.sync();  // the ring has been read
        add_up_key_sums<threads, KeyDim>(block, key_sum, Shared{0}, [&](int col, float of_column) {
          machine::store_to(sums + summary * KeyDim + col, of_column);
        });
      }
    }
  }
};

/// Launches the summaries of `units` units.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, int Parts, bool Sums>
void summarize(const CudaDevice& device, Index items,
               const SummarizeBlocks<T, Map, Rotates, KeyDim, ValueDim, Parts, Sums>& body) {
  machine::run(device, items * body.sharing.kv_heads * body.of_unit(), body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
