// SPDX-License-Identifier: MIT
// The path over block summaries, linear in the tokens:
//
//   forward:   summarize -> mix -> read out
//   backward:  summarize -> mix -> dq, then dS~ -> dS and dm -> dk and dv
//
// Summaries are kept in planes of 16 bits: one, or two for the backward pass of a call with a
// normalizer.
#pragma once

#include <mhla/cuda/call.hpp>
#include <mhla/cuda/fused/block_mixing.hpp>
#include <mhla/cuda/fused/token_shapes.hpp>
#include <mhla/cuda/roofline.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

namespace fused {

/// Scale of summaries of this many tokens: half's range ends at 65504.
template <class T>
float summary_scale(Index tokens) {
  float scale = 1;
  if constexpr (std::is_same_v<T, Half>)
    for (Index reach = 1; reach < tokens; reach *= 2) scale /= 2;
  return scale;
}

/// The mixing of a sequence.
template <class V>
MixingShape mixing_shape(const Extents<V>& e, const Sequence& queries, const Sequence& keys) {
  return {e.units(),      e.keys.kv_heads, e.mix_heads,      e.matrices,
          queries.blocks, keys.blocks,     e.summary_size(), sight_of<V>};
}

/// Whether mixed summaries of all sequences can overwrite the summaries.
template <class V>
bool mix_in_place(const V& variant, const Extents<V>& e) {
  bool all = e.queries.table.blocks == e.keys.table.blocks;
  for_each_sequence_side(variant, e, [&](const Sequence& queries, const Sequence& keys) {
    all = all && mixes_in_place(mixing_shape(e, queries, keys));
  });
  return all;
}

/// Splits of dm's products: enough for the longest sequence to fill the chip. Each split's parts
/// have the size of that sequence, so that more of them for shorter ones would waste memory.
template <class V>
Index splits_of(const Extents<V>& e) {
  return MixingGradientWork(mixing_shape(e, {0, 0, 0, e.mix_rows}, {0, 0, 0, e.mix_columns}))
      .splits;
}

/// Such a call's workspace; `T` is the storage type.
template <class V, class T>
struct SummaryPlan : TablePlan<V, float, true> {
  using Base = TablePlan<V, float, true>;
  using Base::backward;
  using Base::Base;
  using Base::extents;
  using Base::take;
  using Base::take_back;

  int parts = backward ? backward_parts<V> : forward_parts;  // planes of every summary
  bool in_state = false;  // summaries and key sums lie in a forward state
  Index feature_dim = extents.feature_dim;
  Index query_rows = extents.queries.count();
  Index grad_parts = checked_mul(extents.units(), extents.matrices);  // of dmix, in each split
  Index splits = splits_of(extents);

  Summaries<T> summaries = take_summaries(extents.key_summaries(), scale());
  Span<float> key_sums = take(extents.key_summaries(), feature_dim, normalizes<V>);
  /// The forward pass, which does not need summaries once they are mixed, overwrites them if the
  /// kernel can.
  Summaries<T> mixed_summaries = !backward && mix_in_place(this->variant, extents)
                                     ? summaries
                                     : take_summaries(extents.mixed_summaries(), scale());
  Span<float> mixed_key_sums = take(extents.mixed_summaries(), feature_dim, normalizes<V>);

  // Backward pass only. Of every query: 1 / den, c / r, its part of dm_ii.
  Span<float> weights = take_back(query_rows, 1, normalizes<V>);
  Span<float> sum_weights = take_back(query_rows, 1, normalizes<V>);
  Span<float> own_products = take_back(query_rows, 1, is_causal_within_block<V>);
  Summaries<T> grad_mixed_summaries =
      take_summaries(backward ? extents.mixed_summaries() : 0, gradient_scale());
  Span<float> grad_mixed_key_sums =
      take_back(extents.mixed_summaries(), feature_dim, normalizes<V>);
  Summaries<T> grad_summaries =
      take_summaries(backward ? extents.key_summaries() : 0, gradient_scale());
  Span<float> grad_key_sums = take_back(extents.key_summaries(), feature_dim, normalizes<V>);
  Span<float> grad_mixing = take_back(checked_mul(splits, grad_parts), extents.mixing_size());
  // The diagonal's, if it is separate.
  Span<float> grad_own_mixing = take_back(grad_parts, extents.mix_rows, is_causal_within_block<V>);

  /// Summaries of a whole batch may be large. A backward pass has so many kernels that launching
  /// more of them takes what the cache saves.
  static constexpr bool in_parts = true;
  static constexpr bool gains_by_cache(bool of_backward) { return !of_backward; }
  /// [parts, count, feature_dim, value_dim]
  Summaries<T> take_summaries(Index count, float scale_of) {
    const Index size = checked_mul(count, extents.summary_size());
    return {this->arena.template take<T>(checked_mul(parts, size)).data, size, scale_of};
  }

  /// In a state: the planes of the whole batch, as in the backward pass, followed by the key sums.
  void keep_summaries(Index batch, Index first, Span<float> state) {
    if (state.data == nullptr) return;
    static_assert(2 * sizeof(T) == sizeof(float), "planes take at most the memory of floats");
    const Index of_item = extents.keys.kv_heads * extents.keys.table.blocks;
    const Index size = extents.summary_size();
    const Index plane = batch * of_item * size;
    in_state = true;
    summaries = {reinterpret_cast<T*>(state.data) + first * of_item * size, plane, scale()};
    if constexpr (normalizes<V>) key_sums.data = state.data + plane + first * of_item * feature_dim;
  }

  /// Powers of two that scale half's summaries, of key blocks and of their gradients; and 1 / den,
  /// if features are rounded with it.
  float scale() const { return summary_scale<T>(extents.keys.table.block_tokens); }
  float gradient_scale() const {
    return normalizes<V> ? 1.0f : summary_scale<T>(extents.readers());
  }
  float weight_scale() const { return normalizes<V> ? 1 / scale() : 1.0f; }
};

}  // namespace fused

/// Costs of kernels over tokens of blocks, of 16 bits; every kernel has eight warps.
template <class V>
struct TokenCost {
  /// Tokens of all heads of queries, or of all units of keys.
  struct Side {
    double tokens;
    double blocks;        // of all heads
    double block_tokens;  // of the longest
    double summaries;     // mixed ones, or those of key blocks
  };
  CallSize<V> size;
  int planes;
  double parts = 1;  // of the batch

  static constexpr double element = 2;  // bytes
  static constexpr double warps = 8;

  Side queries() const {
    return {size.queries, size.heads * size.query_blocks, size.query_block_tokens,
            size.mixed_summaries};
  }
  Side keys() const {
    return {size.keys, size.units * size.key_blocks, size.key_block_tokens, size.key_summaries};
  }
  Index rows() const { return tile_rows(static_cast<Index>(size.key_dim)); }
  double tiles(const Side& x) const { return x.blocks * tiles_of(x.block_tokens, rows()); }
  double key_sum_bytes() const { return normalizes<V> ? 4 * size.key_dim : 0; }
  double summary_bytes() const { return planes * element * size.summary + key_sum_bytes(); }

  /// A kernel over tiles of tokens.
  struct Product {
    double slices = 1;  // of values, each of which makes the features again
    int planes = 1;     // of a summary that a tile is multiplied with
    double reads = 0;   // of summaries, where one is read more than once
    int gradients = 0;  // of the features, written
    int values = 0;     // 1 if gradients of values are computed, too
  };
  KernelCost product(const Side& x, const Product& by) const {
    const double d = size.key_dim, e = size.value_dim;
    KernelCost cost;
    cost.memory_share = memory_share_of_tokens;
    cost.tensor_bytes = element * x.tokens * ((1 + by.gradients) * d + (1 + by.values) * e);
    cost.summary_bytes = x.summaries * summary_bytes();
    cost.cached_bytes = element * (by.slices - 1 + by.values) * x.tokens * d +
                        16 * by.slices * x.blocks * x.block_tokens +
                        (std::max)(0.0, by.reads - x.summaries) * summary_bytes();
    const double padded = tiles(x) * static_cast<double>(rows());
    const double products = by.planes * (1 + by.values) * d * e;
    const double columns =
        (by.slices + by.gradients + by.values) * d + (1 + by.values) * e;  // copied, or made
    cost.flops = 2 * padded * products;
    cost.instructions =
        warps * tiles(x) * tile_instructions(static_cast<double>(rows()), columns, products) +
        warps * by.slices * x.blocks * instructions_of_summary;
    return cost;
  }
  /// Pairs of tiles of causal blocks: the other side is read by every tile that sees it, features
  /// by every slice of values; `inner` is the sum of the products' other extents.
  void add_own_pairs(KernelCost& cost, const Side& other, double slices, double inner) const {
    if (!is_causal_within_block<V>) return;
    cost.memory_share = (std::min)(cost.memory_share, memory_share_of_pairs);
    const double of_block = tiles_of(size.query_block_tokens, rows());
    const double pairs = size.heads * size.query_blocks * of_block * (of_block + 1) / 2;
    const auto side = static_cast<double>(rows());
    const double once = element * other.tokens * (size.key_dim + size.value_dim);
    const double all = element * pairs * side * (slices * size.key_dim + size.value_dim);
    cost.tensor_bytes += once;
    cost.cached_bytes += (std::max)(0.0, all - once);
    cost.flops += 2 * pairs * side * side * inner;
    cost.instructions += warps * pairs * pair_instructions(side, side, inner);
  }

  /// What a kernel does of a sequence.
  struct MixingLoad {
    double multiply_adds;
    double tiles = 0;      // of mixed summaries
    double summaries = 0;  // read and written, of a unit and matrix
  };
  /// Kernels that mix summaries, or multiply them: one launch per sequence and part.
  template <class Work>
  KernelCost mixing(const Work& work_of) const {
    KernelCost cost;
    cost.launches = 0;
    for_each_sequence_side(
        size.attention, size.e, [&](const Sequence& of_queries, const Sequence& of_keys) {
          if (of_queries.blocks == 0) return;
          const fused::MixingShape shape = fused::mixing_shape(size.e, of_queries, of_keys);
          const MixingLoad load = work_of(shape);
          cost.flops += 2 * load.multiply_adds;
          cost.instructions += mixing_instructions_of_tile * load.tiles;
          cost.summary_bytes += load.summaries * size.units * size.matrices * summary_bytes();
          cost.launches += parts;
        });
    cost.cached_bytes = 4 * size.units * size.matrices * size.block_pairs();
    cost.instructions += mixing_instructions(cost.flops);
    return cost;
  }
  /// Key sums have kernels of their own.
  static constexpr int kernels_of_mixing = normalizes<V> ? 2 : 1;
  KernelCost mix(bool adjoint) const {
    KernelCost cost = mixing([&](const fused::MixingShape& shape) {
      const fused::MixingWork work(shape, adjoint);
      return MixingLoad{work.multiply_adds(planes), static_cast<double>(work.items),
                        static_cast<double>(shape.query_blocks + shape.key_blocks)};
    });
    cost.launches *= kernels_of_mixing;
    return cost;
  }
  KernelCost mixing_gradient() const {
    KernelCost cost = mixing([&](const fused::MixingShape& shape) {
      const fused::MixingGradientWork work(shape);
      return MixingLoad{work.multiply_adds(planes), 0,
                        static_cast<double>(shape.query_blocks * work.key_tiles +
                                            shape.key_blocks * work.query_tiles)};
    });
    cost.launches = kernels_of_mixing * cost.launches + 1;  // sums over splits and units
    return cost;
  }
  KernelCost per_part(KernelCost cost) const {
    cost.launches = parts;
    return cost;
  }

  KernelCost summarize(const Side& x) const {
    const auto slices = size.value_dim / fused::summary_slice(static_cast<int>(size.value_dim));
    return per_part(product(x, {.slices = slices}));
  }
  KernelCost read_out() const {
    const auto memory =
        fused::read_out_memory(static_cast<int>(size.key_dim), static_cast<int>(size.value_dim),
                               is_causal_within_block<V>);
    const Side x = queries();
    const double slices = size.value_dim / memory.slice;
    const double reads = is_causal_within_block<V> ? tiles(x) : x.blocks;
    KernelCost cost = product(x, {.slices = slices, .planes = planes, .reads = reads});
    add_own_pairs(cost, keys(), slices, slices * size.key_dim + size.value_dim);
    return per_part(cost);
  }
  /// A thread block per tile. Queries also multiply q k^T, for dm_ii and the denominators, and keys
  /// for dv.
  KernelCost gradient(const Side& x, const Side& other, int values) const {
    KernelCost cost =
        product(x, {.planes = planes, .reads = tiles(x), .gradients = 1, .values = values});
    cost.memory_share = memory_share_of_tile;
    add_own_pairs(cost, other, 1, 2 * size.key_dim + (1 + values) * size.value_dim);
    return per_part(cost);
  }

  PathCost path(Direction direction, const NominalGpu& gpu) const {
    const double summaries = (std::max)(size.key_summaries, size.mixed_summaries);
    PathCost path{.flops_per_second = gpu.sixteen_bit_flops,
                  .summaries_in_cache = summaries * summary_bytes() <= parts * gpu.cache_bytes};
    path.add(size.tables());
    path.add(summarize(keys()));
    path.add(mix(false));
    if (direction == Direction::forward) {
      path.add(read_out());
      return path;
    }
    path.add(gradient(queries(), keys(), 0));  // dq
    path.add(summarize(queries()));            // dS~
    path.add(mixing_gradient());
    path.add(mix(true));                       // dS
    path.add(gradient(keys(), queries(), 1));  // dk and dv
    return path;
  }
};

/// Fused kernels over block summaries.
struct SummariesPath {
  static constexpr PathTraits traits{.id = CudaPath::summaries, .name = "summaries"};
  template <class V, class T>
  using Plan = fused::SummaryPlan<V, T>;

  template <class V, class T>
  static PathCost cost(const Call<V, T>& call, const NominalGpu& gpu) {
    const Index at_once =
        items_at_once<Plan<V, T>>(call.attention, call.problem, call.is_backward());
    const int planes = call.is_backward() ? fused::backward_parts<V> : fused::forward_parts;
    const auto parts = static_cast<double>(ceil_div(call.problem.shape.batch, at_once));
    return TokenCost<V>{{call.attention, call.problem}, planes, parts}.path(call.direction, gpu);
  }
  /// y of every query; masked ones are left to the caller.
  template <class Dims, class V, class T>
  static void forward(const ForwardCall<V, T>& call);
  /// The wanted gradients; likewise.
  template <class Dims, class V, class T>
  static void backward(const BackwardCall<V, T>& call);
};

}  // namespace cuda

MHLA_NAMESPACE_END
