// SPDX-License-Identifier: MIT
// The cost model of paths: a kernel takes as long as the slowest of moving its bytes, computing its
// products and issuing its instructions, at the share of the chip's rates that its warps reach, and
// a launch. Shares and instructions are those of a simulation of the compiled kernels at the shapes
// of bench/gpu_shapes.hpp, which the model meets within a quarter.
#pragma once

#include <mhla/cuda/plan.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// The share of its SMs' issue slots that a kernel of ours can fill, where nothing else binds:
/// barriers between tiles, dependent products and bank conflicts leave the others empty. With one
/// thread block of eight warps per SM, a scheduler has two warps to choose from, not four.
inline constexpr double issue_share = 0.5;
inline constexpr double issue_share_alone = 0.36;
/// The share of the memory's rate that kernels reach: those that go through tokens, those that also
/// pair a block's own tokens, and those with one tile for a thread block, whose copy and store
/// overlap with nothing of that block.
inline constexpr double memory_share_of_tokens = 0.92;
inline constexpr double memory_share_of_pairs = 0.8;
inline constexpr double memory_share_of_tile = 0.72;

/// A GPU in round numbers: what copies and large matrix products are known to reach on it, not data
/// sheet values. Of an H100 the rate of copies is measured (3.02e12), and that large products run
/// at 1.8e9 Hz (bench/results.csv).
struct NominalGpu {
  const char* name = "H200";
  double memory_bandwidth = 4.3e12;                        ///< bytes a second, of copies
  double cache_bandwidth = 5.5e12;                         ///< of L2
  double cache_bytes = static_cast<double>(cached_bytes);  ///< that stay in L2
  double sixteen_bit_flops = 420e12;                       ///< of mma.sync
  double tf32_flops = 395e12;
  double float_flops = 55e12;  ///< outside the tensor cores
  double double_flops = 60e12;
  double launch_seconds = 2.5e-6;
  double clock = 1.755e9;  ///< hertz
  Index sms = 132;
  Index shared_bytes = 227 * 1024;  ///< maximum of a thread block, within an SM's

  /// Instructions of warps a second: four schedulers of an SM issue one each a cycle.
  constexpr double issue_rate() const { return 4 * static_cast<double>(sms) * clock; }
};
inline constexpr NominalGpu h200;
inline constexpr NominalGpu h100{"H100", 3.0e12};

/// Seconds by what takes them. Moving, computing and issuing overlap.
struct Times {
  double bytes = 0;
  double products = 0;
  double instructions = 0;
  double launches = 0;

  constexpr double all() const { return (std::max)({bytes, products, instructions}) + launches; }
  constexpr Times& operator+=(const Times& other) {
    bytes += other.bytes;
    products += other.products;
    instructions += other.instructions;
    launches += other.launches;
    return *this;
  }
};

/// What a kernel moves, computes and issues. In double, which does not overflow.
struct KernelCost {
  double tensor_bytes = 0;   ///< of q, k, v, y and their gradients, or of panels of them
  double summary_bytes = 0;  ///< of summaries and key sums, between kernels
  double cached_bytes = 0;   ///< of tables, and of what was read before: from L2
  double flops = 0;          ///< of the products, tiles padded
  double instructions = 0;   ///< of warps
  double launches = 1;
  double busy = 1;     ///< share of the SMs that have a thread block
  bool alone = false;  ///< one thread block per SM, of eight warps
  double memory_share = 1;

  constexpr double bytes() const { return tensor_bytes + summary_bytes + cached_bytes; }

  /// `in_cache`: summaries stay in L2 between kernels.
  constexpr Times times(const NominalGpu& gpu, double flops_per_second, bool in_cache) const {
    const double memory = tensor_bytes + (in_cache ? 0 : summary_bytes);
    const double moving =
        (std::max)(memory / gpu.memory_bandwidth, bytes() / gpu.cache_bandwidth) / memory_share;
    return {moving / busy, flops / flops_per_second / busy,
            instructions / gpu.issue_rate() / (alone ? issue_share_alone : issue_share) / busy,
            launches * gpu.launch_seconds};
  }
};

/// The kernels of a path, one after another.
struct PathCost {
  static constexpr int max_kernels = 32;
  KernelCost kernel[std::size_t{max_kernels}]{};
  int count = 0;
  double flops_per_second = 1;
  bool summaries_in_cache = false;

  constexpr void add(const KernelCost& cost) { kernel[count++] = cost; }

  template <class F>
  constexpr double sum(const F& of_kernel) const {
    double total = 0;
    for (int i = 0; i < count; ++i) total += of_kernel(kernel[i]);
    return total;
  }
  constexpr double bytes() const {
    return sum([](const KernelCost& cost) { return cost.bytes(); });
  }
  constexpr double flops() const {
    return sum([](const KernelCost& cost) { return cost.flops; });
  }
  constexpr Times times(const KernelCost& of, const NominalGpu& gpu) const {
    return of.times(gpu, flops_per_second, summaries_in_cache);
  }
  constexpr double seconds(const NominalGpu& gpu) const {
    return sum([&](const KernelCost& cost) { return times(cost, gpu).all(); });
  }
  /// Sums of all kernels' times, whichever binds each of them.
  constexpr Times times(const NominalGpu& gpu) const {
    Times total;
    for (int i = 0; i < count; ++i) total += times(kernel[i], gpu);
    return total;
  }
  /// What binds for most of the time.
  constexpr const char* bound(const NominalGpu& gpu) const {
    constexpr const char* names[] = {"bytes", "products", "instructions", "launches"};
    double bound_by[std::size(names)] = {};
    for (int i = 0; i < count; ++i) {
      const Times of = times(kernel[i], gpu);
      const double most = of.all() - of.launches;
      bound_by[most == of.bytes ? 0 : most == of.products ? 1 : 2] += most;
      bound_by[3] += of.launches;
    }
    return names[std::max_element(bound_by, std::end(bound_by)) - bound_by];
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

/// Instructions that each of eight warps issues for a tile of tokens: to copy `columns` of it and
/// make its features, and for a product of so many multiply-adds a row. All are fitted to what
/// tests/cuda/instruction_budget.py counts.
constexpr double tile_instructions(double rows, double columns, double multiply_adds) {
  constexpr double of_column = 1.6 / 64, of_mma = 4.7;
  return of_column * rows * columns + of_mma * rows * multiply_adds / (8 * 2048);
}
/// For an entry of the tables that a call begins with.
inline constexpr double instructions_of_entry = 17;
/// For a summary, stored or loaded, in a thread block of its own or between tiles of others.
inline constexpr double instructions_of_summary = 400;
/// For a pair of tiles, with products of which the sum of the other extents is `inner`: 334 for 64
/// x 64 tokens and 64 + 64.
constexpr double pair_instructions(double rows, double columns, double inner) {
  return 334.0 / (64 * 64 * 128) * rows * columns * inner;
}
/// For the FLOPs of summaries' products, by all warps: 2.4 for each mma, with its loads of
/// matrices.
constexpr double mixing_instructions(double flops) { return 2.4 * flops / (2 * 2048); }
/// Of a tile of mixed summaries, by all of its warps: copies and stores.
inline constexpr double mixing_instructions_of_tile = 8 * 420;

/// The sizes that costs depend on. Masked tokens count, since only the device can read the masks.
template <class V>
struct CallSize {
  static double number(Index n) { return static_cast<double>(n); }
  static Extents<V> extents(const V& attention, const Problem& problem) {
    Arena arena;
    return Extents<V>(arena, attention, problem, problem.shape.batch);
  }

  const V& attention;
  const Problem& problem;
  Extents<V> e = extents(attention, problem);
  double units = number(e.units());                  // items times kv heads
  double group_size = number(e.queries.group_size);  // query heads of a kv head
  double heads = units * group_size;                 // of the whole batch
  double matrices = number(e.matrices);              // mixing matrices of a kv head
  double key_dim = number(e.key_dim);                // of q and k
  double feature_dim = number(e.feature_dim);        // of phi(q) and phi(k)
  double value_dim = number(e.value_dim);
  double query_blocks = number(e.queries.table.blocks);  // of a head, of all sequences
  double key_blocks = number(e.keys.table.blocks);
  double query_block_tokens = number(e.queries.table.block_tokens);  // of the longest block
  double key_block_tokens = number(e.keys.table.block_tokens);
  double mix_heads = number(e.mix_heads);  // of the mixing matrix
  double mix_rows = number(e.mix_rows);    // of the longest sequence
  double mix_columns = number(e.mix_columns);

  // Tokens of all heads; summaries of key blocks, and mixed ones of query blocks.
  double queries = heads * number(problem.shape.query_tokens);
  double keys = units * number(problem.shape.key_tokens);
  double key_summaries = units * key_blocks;
  double mixed_summaries = units * query_blocks * matrices;
  double summary = feature_dim * value_dim;

  /// What every path starts with: tables of blocks, which queries and keys may share, and angles,
  /// and the packed mixing matrix.
  KernelCost tables() const {
    double entries = query_blocks * query_block_tokens;
    if (problem.query_grid != problem.key_grid) entries += key_blocks * key_block_tokens;
    Arena arena;
    const Index strips = problem.feature_dim % 8 == 0 ? strip_width(problem.feature_dim) : 0;
    const double angles =
        number(rotation_table<float>(arena, attention.rotation, V::GeometryType::rank,
                                     problem.feature_dim, problem.grid_box(), strips)
                   .angles.size);
    const double coefficients = number(e.mixings()) * number(e.mixing_size());
    KernelCost cost;
    cost.cached_bytes = 16 * entries + 8 * (angles + coefficients);
    cost.instructions = instructions_of_entry * (entries + angles + coefficients);
    if (is_structured<V>) cost.launches += is_causal_within_block<V> ? 2 : 1;  // coefficients
    return cost;
  }
  /// The sequences of an item.
  double sequences() const {
    double count = 0;
    for_each_sequence(attention, problem.query_grid, [&](const Sequence&) { ++count; });
    return count;
  }
  /// Calls f(product) for a structured mixing's products, of a head.
  template <class F>
  void for_each_product(const F& f) const {
    for_each_sequence(attention, problem.query_grid, [&](const Sequence& sequence) {
      attention.mixing.for_each_product(e.layout_of(sequence), f);
    });
  }
  /// Pairs of a query block and a key block that mixing joins, of a head; of a structured one the
  /// terms of its products.
  double block_pairs() const {
    double pairs = 0;
    if constexpr (is_structured<V>) {
      for_each_product([&](const MixingProduct& product) { pairs += number(product.terms()); });
      return pairs;
    }
    for_each_sequence_side(attention, e, [&](const Sequence& of_queries, const Sequence& of_keys) {
      const double n = number(of_queries.blocks);
      pairs += !is_causal<V>               ? n * number(of_keys.blocks)
               : is_causal_within_block<V> ? n * (n - 1) / 2
                                           : n * (n + 1) / 2;
    });
    return pairs;
  }
};

}  // namespace cuda

MHLA_NAMESPACE_END
