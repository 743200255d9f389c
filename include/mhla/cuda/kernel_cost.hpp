// SPDX-License-Identifier: MIT
// The parts of the cost model of paths: the sizes of a call, the bytes and FLOPs of a kernel, and a
// nominal GPU. Good enough to choose between paths that are far apart; measurements are to replace
// it. Needs no CUDA header.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/fused/moved_bytes.hpp>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/cuda/rotation_table.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

enum class Direction { forward, backward };

/// An H200 in round numbers: what copies and large matrix products are known to reach on it, not
/// data sheet values. None was measured by this library.
struct NominalGpu {
  double memory_bandwidth = 4.3e12;   ///< bytes a second, of copies
  double cache_bandwidth = 5.5e12;    ///< of L2
  double cache_bytes = 30e6;          ///< certain to stay in L2, whose halves may both hold a line
  double sixteen_bit_flops = 420e12;  ///< of mma.sync
  double tf32_flops = 395e12;
  double float_flops = 55e12;  ///< outside the tensor cores
  double double_flops = 60e12;
  double launch_seconds = 2.5e-6;
  Index processors = 132;
  Index shared_bytes = 227 * 1024;  ///< maximum of a thread block, within an SM's
};

/// Bytes and FLOPs of one kernel. In double, which does not overflow and is exact up to 2^53.
struct KernelCost {
  const char* name = "";
  double tensor_bytes = 0;    ///< of q, k, v, y and their gradients, or of panels of them
  double summary_bytes = 0;   ///< of summaries and key sums, between kernels
  double repeated_bytes = 0;  ///< of tables, and of what was read before: from L2
  double flops = 0;           ///< of the products, tiles padded
  double launches = 1;
  double near_bytes = 0;         ///< what a thread block rereads immediately: from L1
  fused::MovedBytes moved = {};  ///< all of it, exact if it was counted
  /// One thread block per SM: no other computes while it waits.
  bool alone = false;
  double busy = 1;      ///< share of the SMs that have a thread block
  bool beside = false;  ///< an element-wise kernel or cuBLAS call beside a fused path's kernels

  constexpr double bytes() const { return bytes_from_cache() + near_bytes; }
  constexpr double bytes_from_cache() const {
    return tensor_bytes + summary_bytes + repeated_bytes;
  }

  /// Sets the kernel's own count of requested bytes: what no other kind of bytes accounts for is
  /// from L1.
  constexpr void count(const fused::MovedBytes& bytes) {
    moved = bytes;
    double left = static_cast<double>(bytes.total());
    for (double* const kind : {&tensor_bytes, &summary_bytes, &repeated_bytes}) {
      *kind = std::min(*kind, left);
      left -= *kind;
    }
    near_bytes = left;
  }

  /// `in_cache`: summaries stay in L2 between kernels.
  constexpr double seconds(const NominalGpu& gpu, double flops_per_second, bool in_cache) const {
    const double memory = tensor_bytes + (in_cache ? 0 : summary_bytes);
    const double moving =
        std::max(memory / gpu.memory_bandwidth, bytes_from_cache() / gpu.cache_bandwidth);
    const double computing = flops / flops_per_second;
    return launches * gpu.launch_seconds +
           (alone ? moving + computing : std::max(moving, computing)) / busy;
  }
};

/// The kernels of a path, in sequence.
struct PathCost {
  static constexpr int most = 32;
  KernelCost kernel[std::size_t{most}];
  int count = 0;
  double flops_per_second = 0;
  bool summaries_in_cache = false;

  constexpr void add(const KernelCost& cost) { kernel[count++] = cost; }
  constexpr void add_beside(KernelCost cost) {
    cost.beside = true;
    add(cost);
  }

  template <class F>
  constexpr double sum(const F& of_kernel) const {
    double total = 0;
    for (int i = 0; i < count; ++i) total += of_kernel(kernel[i]);
    return total;
  }
  /// Bytes that the kernels request. On a fused path the sum of their own counts, exact if no token
  /// is masked, without what runs beside them: element-wise kernels, which fill tables and sum
  /// parts of dm, and cuBLAS's products of key sums.
  constexpr double bytes() const {
    return sum([](const KernelCost& cost) { return cost.beside ? 0.0 : cost.bytes(); });
  }
  constexpr double bytes_beside() const {
    return sum([](const KernelCost& cost) { return cost.beside ? cost.bytes() : 0.0; });
  }
  /// Bytes read and written, of a fused path.
  constexpr fused::MovedBytes moved() const {
    fused::MovedBytes total;
    for (int i = 0; i < count; ++i) total += kernel[i].moved;
    return total;
  }
  constexpr double flops() const {
    return sum([](const KernelCost& cost) { return cost.flops; });
  }
  constexpr double launches() const {
    return sum([](const KernelCost& cost) { return cost.launches; });
  }
  constexpr double seconds(const NominalGpu& gpu) const {
    return sum([&](const KernelCost& cost) {
      return cost.seconds(gpu, flops_per_second, summaries_in_cache);
    });
  }
};

/// ceil(count / tile), for sizes as double.
constexpr double tiles_of(double count, Index tile) {
  const auto whole = static_cast<double>(static_cast<Index>(count) / tile);
  return whole + (whole * static_cast<double>(tile) < count ? 1 : 0);
}
/// `count`, rounded up to tiles.
constexpr double filled(double count, Index tile) {
  return tiles_of(count, tile) * static_cast<double>(tile);
}
/// The sizes that costs depend on. Masked tokens count, since only the device can read the masks.
struct CallSize {
  double units;        // items times kv heads
  double heads;        // of the whole batch: units times group_size
  double group_size;   // query heads of a kv head
  double matrices;     // mixing matrices of a kv head
  double mix_heads;    // of the mixing matrix, as mix_rows and mix_columns
  double sequences;    // of an item
  double key_dim;      // of q and k
  double feature_dim;  // of phi(q) and phi(k)
  double value_dim;
  double query_tokens;  // of a head
  double key_tokens;
  double query_blocks;  // of a head, of all sequences
  double key_blocks;
  double query_block_tokens;  // of the longest block
  double key_block_tokens;
  double mix_rows;  // of the longest sequence
  double mix_columns;
  double block_pairs;     // of a query block and a key block that mixing joins, of a head
  double own_tile_pairs;  // of tiles of causal blocks that see each other, of a head
  double rotated_axes;    // of the grid
  double angle_bytes;     // of the tables of their cosines and sines
  Sight sight;
  bool normalizes;
  bool mixes_products;
  bool rotates;
  bool is_rowwise;

  constexpr bool masks_own_block() const { return sight == Sight::past_tokens; }
  constexpr double queries() const { return heads * query_tokens; }
  constexpr double keys() const { return units * key_tokens; }
  constexpr double summary() const { return feature_dim * value_dim; }
  /// Summaries of key blocks, and mixed ones of query blocks.
  constexpr double key_summaries() const { return units * key_blocks; }
  constexpr double mixed_summaries() const { return units * query_blocks * matrices; }
};

/// What every path starts with: tables of blocks and angles, and the packed mixing matrix.
constexpr KernelCost tables_cost(const CallSize& size) {
  KernelCost cost{"tables"};
  cost.repeated_bytes =
      static_cast<double>(sizeof(Place)) *
          (size.query_blocks * size.query_block_tokens + size.key_blocks * size.key_block_tokens) +
      8 * size.mix_heads * size.mix_rows * size.mix_columns;
  cost.launches = 3 + size.rotated_axes;
  return cost;
}

template <AttentionVariant V>
CallSize call_size(const V& attention, const Problem& problem) {
  const auto number = [](Index n) { return static_cast<double>(n); };
  Arena arena;
  const Extents<V> e(arena, attention, problem, problem.shape.batch);
  CallSize size{};
  size.units = number(e.units());
  size.group_size = number(e.queries.group_size);
  size.heads = size.units * size.group_size;
  size.matrices = number(e.matrices);
  size.mix_heads = number(e.mix_heads);
  size.key_dim = number(e.key_dim);
  size.feature_dim = number(e.feature_dim);
  size.value_dim = number(e.value_dim);
  size.query_tokens = number(problem.shape.query_tokens);
  size.key_tokens = number(problem.shape.key_tokens);
  size.query_blocks = number(e.queries.table.blocks);
  size.key_blocks = number(e.keys.table.blocks);
  size.query_block_tokens = number(e.queries.table.block_tokens);
  size.key_block_tokens = number(e.keys.table.block_tokens);
  size.mix_rows = number(e.mix_rows);
  size.mix_columns = number(e.mix_columns);
  size.sight = sight_of<V>;
  size.normalizes = normalizes<V>;
  size.mixes_products = mixes_products<V>;
  size.rotates = rotates<V>;
  size.rotated_axes = rotates<V> ? number(V::GeometryType::rank) : 0;
  Arena angles;
  rotation_table<float>(angles, attention.rotation, V::GeometryType::rank, problem.feature_dim,
                        problem.query_grid, problem.key_grid);
  size.angle_bytes = number(angles.used());
  size.is_rowwise = is_rowwise<V>;

  for_each_sequence(attention, problem.query_grid, [&](const Sequence& s) {
    const double n = number(s.blocks);
    ++size.sequences;
    size.block_pairs += !sees_past_only<V>
                            ? n * number(is_packed<V> ? s.blocks : e.keys.table.blocks)
                        : masks_own_block<V> ? n * (n - 1) / 2
                                             : n * (n + 1) / 2;
  });
  if (masks_own_block<V>) {
    const double tiles = tiles_of(size.query_block_tokens, tile_rows(e.key_dim));
    size.own_tile_pairs = size.query_blocks * tiles * (tiles + 1) / 2;
  }
  return size;
}

}  // namespace cuda

MHLA_NAMESPACE_END
