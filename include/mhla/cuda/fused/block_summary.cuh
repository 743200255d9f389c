// SPDX-License-Identifier: MIT
// Block summaries (arXiv 2601.07832, eq. 3), a thread block per block and slice of value columns:
//
//   S = sum_t w_t phi^r(x_t) v_t^T     z = sum_t c_t phi(x_t)
//
// over the tokens t of a block, phi^r the rotated features. Forward: x = k, v = v, w = c = 1: S_b
// and z_b. Backward: x = q, v = dy, w = 1 / den, c the gradients of the denominators: dS~_i and
// dz~_i, over all query heads that read the mixed summary.
#pragma once

#include <mhla/cuda/chip/product.cuh>
#include <mhla/cuda/fused/block_mixing.hpp>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/token_shapes.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Which query heads share a summary: `matrices` of them, or groups, per kv head.
struct Sharing {
  int kv_heads;
  int heads;     // of the tokens, per kv head
  int matrices;  // summaries per kv head and block

  MHLA_HOST_DEVICE int all_heads() const { return kv_heads * heads; }
  MHLA_HOST_DEVICE int heads_of_matrix() const { return heads / matrices; }
  /// That of a range of one block's tokens, in [units, blocks, matrices].
  MHLA_DEVICE Index summary_of(const BlockTable& table, const TokenRange& range) const {
    const Index unit = range.item * kv_heads + range.head / heads;
    return (unit * table.blocks + table.block_of(range.begin)) * matrices +
           range.head % heads / heads_of_matrix();
  }
};

/// Each lane's sums of its strips' elements.
template <int Dim>
struct StripSums {
  float value[std::size_t{Strips<Dim>::of_lane}][std::size_t{Strips<Dim>::size}] = {};
};

/// Sums each column's features over its threads, in a fixed order: over a warp's rows, then over
/// warps, by way of `scratch`, [warps, KeyDim] in float. Calls store(col, sum) for every column.
/// Synchronizes the thread block.
template <int Threads, int KeyDim, class Store>
MHLA_DEVICE void add_up_key_sums(const Block& block, const StripSums<KeyDim>& of_lane,
                                 Shared scratch, const Store& store) {
  using S = Strips<KeyDim>;
  const auto of_warp = [&](int warp, int col) {
    return scratch + static_cast<Shared>((warp * KeyDim + col) * 4);
  };
  MHLA_DEVICE_UNROLL
  for (int i = 0; i < S::of_lane; ++i) {
    const int n = i * S::lanes + block.lane() % S::lanes;
    MHLA_DEVICE_UNROLL
    for (int e = 0; e < S::size; ++e) {
      float sum = of_lane.value[i][e];
      for (int mask = S::lanes; mask < 32; mask *= 2) sum += machine::exchange(sum, mask);
      if (block.lane() < S::lanes && n < S::count)
        machine::write<float>(of_warp(block.warp(), S::column(n, e)), sum);
    }
  }
  block.sync();
  for (int col = block.thread; col < KeyDim; col += Threads) {
    float sum = 0;
    for (int warp = 0; warp < Threads / 32; ++warp) sum += machine::read<float>(of_warp(warp, col));
    store(col, sum);
  }
}

/// The key sums of a kernel: none; sums of features, of a forward pass; or weighted ones of
/// queries.
enum class KeySums { none, plain, weighted };

/// Key sums of a thread block's tiles. Where they are of features as rounded, they come out of the
/// summary's own product; else lanes add those of their strips, in registers or shared memory.
template <class Traits, class Sum, KeySums Sums, bool InMemory>
class KeySumsOfTiles {
  using S = Strips<Traits::key_dim>;
  static constexpr int key_dim = Traits::key_dim;
  static constexpr int threads = Sum::warps * 32;
  static constexpr bool of_product = Sums == KeySums::plain && !Traits::rotates;
  static constexpr bool of_lanes = Sums != KeySums::none && !of_product;
  static constexpr bool in_memory = of_lanes && InMemory;
  static constexpr int lane_bytes = in_memory ? S::of_lane * S::size * threads * 4 : 0;
  using Four = Vector<float, 4>;

 public:
  /// Of shared memory, from `begin` on.
  static constexpr int bytes = lane_bytes + (of_lanes ? Sum::warps * key_dim * 4 : 0);

  MHLA_DEVICE KeySumsOfTiles(const Block& block, Shared at) : begin(at) { set_zero(block); }

  /// Adds a strip of weighted features, the lane's i-th, times c / w.
  MHLA_DEVICE void add_strip(const Block& block, int i, const typename S::Elements& features,
                             float factor) {
    MHLA_DEVICE_UNROLL
    for (int e = 0; e < S::size; e += 4) {
      if constexpr (in_memory) {
        const Shared at = four(block, i, e);
        auto sum = machine::read<Four>(at);
        for (int x = 0; x < 4; ++x) sum.element[x] += factor * features[e + x];
        machine::write(at, sum);
      } else if constexpr (of_lanes) {
        for (int x = e; x < e + 4; ++x) sums.value[i][x] += factor * features[x];
      }
    }
  }
  /// sum += K^T V, and the key sums, if they are of the product.
  template <class KeyTile, class ValueTile>
  MHLA_DEVICE void multiply_add(const Block& block, Sum& sum, const KeyTile& keys,
                                const ValueTile& values) {
    const auto use = [&](int i, const auto& rows) {
      if constexpr (of_product) sums(i, rows);
    };
    fused::multiply_add<typename Traits::T, Stored::transposed, Stored::not_transposed>(
        block, sum, keys, values, use);
  }
  /// Calls store(col, sum) for every column, and begins again. Synchronizes the thread block where
  /// lanes' sums are added up.
  template <class Store>
  MHLA_DEVICE void finish(const Block& block, const Store& store) {
    if constexpr (of_product) {
      sums.for_each(block, store);
    } else if constexpr (in_memory) {
      StripSums<key_dim> of_lane;
      for_each_four(block, [&](Shared at, int i, int e) {
        const auto sum = machine::read<Four>(at);
        for (int x = 0; x < 4; ++x) of_lane.value[i][e + x] = sum.element[x];
      });
      add_up_key_sums<threads, key_dim>(block, of_lane, begin + Shared{lane_bytes}, store);
    } else if constexpr (of_lanes) {
      add_up_key_sums<threads, key_dim>(block, sums, begin, store);
    }
    set_zero(block);
  }

 private:
  MHLA_DEVICE Shared four(const Block& block, int i, int e) const {
    return begin + static_cast<Shared>(((i * S::size + e) / 4 * threads + block.thread) * 16);
  }
  template <class F>
  MHLA_DEVICE void for_each_four(const Block& block, const F& f) const {
    MHLA_DEVICE_UNROLL
    for (int i = 0; i < S::of_lane; ++i) {
      MHLA_DEVICE_UNROLL
      for (int e = 0; e < S::size; e += 4) f(four(block, i, e), i, e);
    }
  }
  MHLA_DEVICE void set_zero(const Block& block) {
    if constexpr (in_memory) {
      for_each_four(block, [](Shared at, int, int) { machine::write(at, Four{}); });
    } else if constexpr (Sums != KeySums::none) {
      for (auto& part : sums.value)
        for (float& element : part) element = 0;
    }
  }

  struct Nothing {};
  Shared begin;
  std::conditional_t<of_product, RowSums<typename Traits::T, Sum>,
                     std::conditional_t<of_lanes && !in_memory, StripSums<key_dim>, Nothing>>
      sums;
};

/// The tiles of consecutive blocks, in each of them those of a few heads.
struct TileCursor {
  TokenRange range;  // from the tile's first token to the end of its block
  int head = 0;      // among those heads
  int heads;
  int block_tokens;

  MHLA_DEVICE TileCursor(const BlockTable& table, Index item, Index first_head, Index heads_of,
                         Index first_block)
      : range(TokenRange::of_block(table, item, first_head, first_block)),
        heads(static_cast<int>(heads_of)),
        block_tokens(static_cast<int>(table.block_tokens)) {}

  /// Goes on to the next tile. Whether that is in another block.
  template <int Rows>
  MHLA_DEVICE bool next() {
    range.begin += Rows;
    if (range.begin < range.end) return false;
    if (++head < heads) {
      ++range.head;
      range.begin = range.end - block_tokens;
      return false;
    }
    range.head -= heads - 1;
    head = 0;
    range.begin = range.end;
    range.end += block_tokens;
    return true;
  }
};

template <class Traits, int Parts, KeySums Sums>
struct SummarizeBlocks {
  using T = typename Traits::T;
  static constexpr int key_dim = Traits::key_dim;
  static constexpr int value_dim = Traits::value_dim;
  static constexpr int threads = 256;
  static constexpr int min_blocks_per_sm = key_dim > 128 ? 1 : 2;
  static constexpr int rows = tile_rows(key_dim);
  static constexpr int slice = summary_slice(value_dim);
  static constexpr int slices = value_dim / slice;
  static constexpr int stages = 2;
  using KeyTile = Tile<rows, key_dim>;
  using ValueTile = Tile<rows, slice>;
  using Sum = Accumulators<key_dim, slice, 4, 2>;
  // Two thread blocks share an SM's registers.
  static constexpr bool lacks_registers = min_blocks_per_sm == 2 && Sum::registers >= 48;
  using KeySum = KeySumsOfTiles<Traits, Sum, Sums, lacks_registers>;

  struct Memory {
    MHLA_HOST_DEVICE constexpr Memory() {}
    SharedLayout layout{};
    Ring<KeyTile, stages> keys = layout.take<Ring<KeyTile, stages>>();
    Ring<ValueTile, stages> values = layout.take<Ring<ValueTile, stages>>();
    std::uint32_t key_sums = layout.take_bytes(KeySum::bytes);
  };
  MHLA_HOST_DEVICE static constexpr Memory memory() { return {}; }
  static constexpr int shared_bytes = memory().layout.bytes();

  FeatureTokens<T, typename Traits::Map, Traits::rotates> x;
  Tokens<const T> v;
  Sharing sharing;
  const float* weights;      // w, [units, blocks, heads, block tokens], if sums are weighted
  const float* sum_weights;  // c / w
  float weight_scale;        // a power of two that scales w before phi is rounded with it, or 1
  Summaries<T> summaries;
  float* sums;             // [units, blocks, matrices, key_dim]
  int blocks_at_once = 1;  // of tokens, for a thread block, whose loads so overlap with stores

  Index blocks(Index items) const {
    return items * sharing.kv_heads * sharing.matrices * slices *
           ceil_div(x.x.table.blocks, Index{blocks_at_once});
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    const BlockTable& table = x.x.table;
    BlockIndices indices(block);
    const int kv_head = indices.next(sharing.kv_heads);
    const int matrix = indices.next(sharing.matrices);
    const int column = indices.next(slices) * slice;
    Index b = Index{indices.next(ceil_div(table.blocks, Index{blocks_at_once}))} * blocks_at_once;
    const Index item = indices.rest;
    const Index unit = item * sharing.kv_heads + kv_head;
    const int heads = sharing.heads_of_matrix();
    const int first_head = matrix * heads;  // among those of the kv head
    const auto left = static_cast<int>(table.blocks - b);
    int tiles =
        table.tiles_of_block(rows) * heads * (left < blocks_at_once ? left : blocks_at_once);
    TileCursor tile(table, item, kv_head * sharing.heads + first_head, heads, b);
    TileCursor ahead = tile;

    machine::wait_for_earlier_kernels();  // this may be the first kernel of a call
    Sum sum;
    KeySum key_sum(block, memory().key_sums);
    begin_copy(block, tile.range, column, 0);
    for (int slot = 0; tiles > 0; --tiles, slot ^= 1) {
      machine::wait_for_copies<0>();
      block.sync();  // this tile has landed, and the previous one has been read
      ahead.template next<rows>();
      if (tiles > 1) begin_copy(block, ahead.range, column, slot ^ 1);
      const Index queries = (unit * table.blocks + b) * sharing.heads + first_head + tile.head;
      add_features(block, tile.range, (queries - b) * table.block_tokens + tile.range.begin,
                   memory().keys[slot], key_sum);
      block.sync();
      key_sum.multiply_add(block, sum, memory().keys[slot], memory().values[slot]);
      if (tile.template next<rows>()) {
        store(block, (unit * table.blocks + b) * sharing.matrices + matrix, column, sum, key_sum);
        ++b;
      }
    }
  }

 private:
  MHLA_DEVICE void begin_copy(const Block& block, const TokenRange& range, int column,
                              int slot) const {
    copy_tokens<threads>(block, x.x, range, memory().keys[slot]);
    copy_tokens<threads>(block, v, range, memory().values[slot], column);
    machine::commit_copies();
  }
  /// A tile's features, whose weights begin with the `first`, and their sums.
  MHLA_DEVICE void add_features(const Block& block, const TokenRange& range, Index first,
                                const KeyTile& keys, KeySum& key_sum) const {
    const float weigh = weight_scale * x.scale;
    const float unweigh = 1 / weight_scale;
    float sum_weight = 1;  // of features that are already weighted
    make_features<threads>(
        block, x, range, keys,
        [&](int row) {
          if constexpr (Sums == KeySums::weighted) {
            sum_weight = machine::load_from(sum_weights + first + row) * unweigh;
            return machine::load_from(weights + first + row) * weigh;
          } else if constexpr (Sums == KeySums::plain) {
            return 1.0f;  // keys have no scale
          } else {
            return x.scale;
          }
        },
        [&](int, int i, const typename Strips<key_dim>::Elements& features) {
          key_sum.add_strip(block, i, features, sum_weight);
        },
        Ignore());
  }
  /// Stores a block's sums, and starts those of the next.
  MHLA_DEVICE void store(const Block& block, Index summary, int column, Sum& sum,
                         KeySum& key_sum) const {
    const Index first = summary * (key_dim * value_dim) + column;
    sum.scale(summaries.scale / weight_scale);
    // The pairs of four lanes become a chunk of each: narrower stores would write half sectors.
    const int chunk = block.lane() % 4;
    sum.for_each_four_parts(block, [&](int row, int col, int present, float(&pairs)[4][2]) {
      T* const to = summaries.data + first + (row * value_dim + col) + chunk * chunk_size;
      MHLA_DEVICE_UNROLL
      for (int plane = 0; plane < Parts; ++plane) {
        Chunk rounded;
        MHLA_DEVICE_UNROLL
        for (int n = 0; n < 4; ++n) rounded.word[n] = split_off<T>(pairs[n][0], pairs[n][1]);
        transpose_words(block, rounded.word);
        if (chunk < present)
          machine::store_to(reinterpret_cast<Chunk*>(to + plane * summaries.plane), rounded);
      }
    });
    sum = {};
    if (column != 0) return;  // and their key sums stay, which nobody reads
    key_sum.finish(block, [&](int col, float of_column) {
      machine::store_to(sums + summary * key_dim + col, of_column);
    });
  }
};

/// Blocks of tokens, of so many tiles each, that a thread block takes one after the other: several
/// short ones, whose loads then overlap with stores, while eight thread blocks are left for each
/// of an H100's SMs.
constexpr int summaries_at_once(Index tiles, Index thread_blocks) {
  int blocks = 1;
  while (2 * blocks * tiles <= 4 && thread_blocks / (2 * blocks) >= 8 * 132) blocks *= 2;
  return blocks;
}

/// Launches the summaries of `items` items of the batch.
template <class Traits, int Parts, KeySums Sums>
void summarize(const CudaDevice& device, Index items, SummarizeBlocks<Traits, Parts, Sums> body) {
  const Index blocks = body.blocks(items);
  if (blocks == 0) return;
  const int tiles = body.x.x.table.tiles_of_block(body.rows) * body.sharing.heads_of_matrix();
  if (body.blocks_at_once == 1) body.blocks_at_once = summaries_at_once(tiles, blocks);
  machine::run(device, body.blocks(items), body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
