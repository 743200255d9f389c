// SPDX-License-Identifier: MIT
// Bytes and FLOPs of the fused kernels over block summaries, by kernel.
//
//   forward:   summarize -> mix -> read out
//   backward:  summarize -> mix -> dq, then dS~ -> dS and dm -> dv, dk
//
// Summaries are kept in planes of 16 bits: one for the forward pass, two for the backward pass.
// Bytes are the kernels' own counts, with every gradient wanted and overwritten.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/fused/block_mixing.hpp>
#include <mhla/cuda/fused/plan.hpp>
#include <mhla/cuda/fused/token_bytes.hpp>
#include <mhla/cuda/kernel_cost.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

inline constexpr double storage_bytes = 2;
inline constexpr double float_bytes = 4;

/// L1 of an SM that is certain to remain beside shared memory.
inline constexpr double near_cache_bytes = 20e3;

/// Table bytes per row of feature tiles: places, and cosines and sines of tokens, unless these stay
/// in L1, as those of multi-axis grids do.
constexpr double table_bytes(const CallSize& size, double entries, double tokens) {
  const bool near = size.angle_bytes <= near_cache_bytes;
  return static_cast<double>(sizeof(Place)) * entries +
         (size.rotates && !near ? float_bytes * size.key_dim * tokens : 0);
}

/// Costs of the kernels of a call, in parts of `items_at_once` of the batch.
template <AttentionVariant V>
struct SummariesCost {
  /// Tokens of all heads of queries, or of all units of keys.
  struct Tokens {
    TokenStage stage;
    TileTokens tiles;
    double tokens;
    double entries;    // of the block table, for every head
    double rows;       // of tiles
    double summaries;  // mixed ones, or those of key blocks
  };

  const V& attention;
  const Problem& problem;
  const CallSize& size;
  Extents<V> extents;
  Index items_at_once;
  int planes;
  Tokens queries;
  Tokens keys;

  SummariesCost(const V& variant, const Problem& of_call, const CallSize& call_size, Arena& arena,
                Index at_once, Direction direction)
      : attention(variant),
        problem(of_call),
        size(call_size),
        extents(arena, variant, of_call, of_call.shape.batch),
        items_at_once(at_once),
        planes(direction == Direction::backward ? backward_parts : forward_parts),
        queries(tokens_of(of_call.query_grid, extents.queries, extents.matrices, size.queries(),
                          size.mixed_summaries())),
        keys(tokens_of(of_call.key_grid, extents.keys, 1, size.keys(), size.key_summaries())) {}

  Tokens tokens_of(const Grid& grid, const PanelRows& panel, Index matrices, double tokens,
                   double summaries) const {
    const Index rows = tile_rows(extents.key_dim);
    Tokens of{{extents.key_dim, extents.value_dim, planes, rotates<V>, panel.kv_heads,
               panel.group_size, matrices},
              TileTokens(attention, grid, problem.shape.batch, rows),
              tokens,
              static_cast<double>(panel.count()),
              0,
              summaries};
    of.rows = static_cast<double>(of.stage.all_heads() * of.tiles.tiles() * rows);
    return of;
  }

  /// Bytes of one summary, and of one key sum.
  double summary_bytes() const { return planes * storage_bytes * size.summary(); }
  double key_sum_bytes() const { return size.normalizes ? float_bytes * size.key_dim : 0; }
  double features_of(const Tokens& of) const { return storage_bytes * of.tokens * size.key_dim; }
  double values_of(const Tokens& of) const { return storage_bytes * of.tokens * size.value_dim; }
  /// 1 / den and its gradient, which queries leave for later kernels.
  double denominator_bytes() const {
    return size.normalizes ? 2 * float_bytes * size.queries() : 0;
  }

  /// S = sum_t w_t phi(x_t) v_t^T and its row sums: of keys, or, as the adjoint of the readout, of
  /// queries.
  KernelCost summarize(const char* name, const Tokens& x, bool weighted) const {
    const auto slices = static_cast<double>(x.stage.summary_slices());
    KernelCost cost{name};
    cost.tensor_bytes = features_of(x) + values_of(x) + (weighted ? denominator_bytes() : 0);
    cost.summary_bytes = x.summaries * (summary_bytes() + key_sum_bytes());
    // Every slice of values recomputes the features.
    cost.repeated_bytes =
        (slices - 1) * features_of(x) + slices * table_bytes(size, x.entries, x.tokens);
    cost.flops = 2 * x.rows * filled(size.key_dim, 16) * size.value_dim;
    cost.count(summarize_bytes(x.stage, x.tiles, size.normalizes, weighted && size.normalizes,
                               weighted && size.normalizes));
    return cost;
  }

  /// Calls f(shape, times) for the mixing of each sequence, `times` being the parts of the batch of
  /// that size.
  template <class F>
  void for_each_mixing_shape(const F& f) const {
    const Index batch = problem.shape.batch;
    for_each_sequence_side(attention, extents,
                           [&](const Sequence& of_queries, const Sequence& of_keys) {
                             MixingShape shape = mixing_shape(extents, of_queries, of_keys);
                             const auto of_part = [&](Index items, Index times) {
                               shape.units = items * extents.keys.kv_heads;
                               if (items * times > 0) f(shape, times);
                             };
                             of_part(items_at_once, batch / items_at_once);
                             of_part(batch % items_at_once, 1);
                           });
  }

  /// S~ = M S, or dS = M^T dS~: between `from` and `to` summaries. One launch per sequence.
  KernelCost mix(const char* name, bool adjoint, double from, double to) const {
    KernelCost cost{name};
    MovedBytes bytes;
    cost.launches = 0;
    for_each_mixing_shape([&](const MixingShape& shape, Index times) {
      const MixingWork work(shape, adjoint);
      bytes += times * work.bytes(planes, planes);
      cost.flops += 2 * static_cast<double>(times) * work.multiply_adds(planes);
      if (shape.query_blocks > 0) cost.launches += static_cast<double>(times);
    });
    cost.summary_bytes = (from + to) * summary_bytes();
    cost.repeated_bytes = static_cast<double>(bytes.total()) - cost.summary_bytes;
    cost.count(bytes);
    return cost;
  }
  /// Of key sums, by cuBLAS.
  KernelCost mix_key_sums(const char* name) const {
    KernelCost cost{name};
    cost.summary_bytes =
        (size.key_summaries() * size.matrices + size.mixed_summaries()) * key_sum_bytes();
    cost.repeated_bytes =
        float_bytes * size.units * size.matrices * size.mix_rows * size.mix_columns;
    cost.launches = size.sequences * parts();
    return cost;
  }
  double parts() const { return static_cast<double>(ceil_div(problem.shape.batch, items_at_once)); }
  /// dm: the inner products of dS~ and S.
  KernelCost mixing_gradient() const {
    KernelCost cost{"dm"};
    MovedBytes bytes;
    cost.launches = 0;
    for_each_mixing_shape([&](const MixingShape& shape, Index times) {
      const MixingGradientWork work(shape);
      bytes += times * mix_matrix_gradient_bytes(shape, planes);
      cost.flops += 2 * static_cast<double>(times) * work.multiply_adds(planes);
      if (shape.query_blocks > 0) cost.launches += static_cast<double>(times);
    });
    cost.summary_bytes = (size.mixed_summaries() + size.key_summaries()) * summary_bytes();
    cost.repeated_bytes = static_cast<double>(bytes.total()) - cost.summary_bytes;
    cost.count(bytes);
    return cost;
  }
  /// Sums of its parts: over columns, then over units.
  KernelCost sum_mixing_gradient() const {
    KernelCost cost{"sums of dm"};
    cost.launches = 1;
    for_each_mixing_shape([&](const MixingShape& shape, Index times) {
      cost.repeated_bytes +=
          static_cast<double>((times * mix_matrix_gradient_sum_bytes(shape, true)).total());
      cost.launches += static_cast<double>(times);
    });
    cost.repeated_bytes +=
        float_bytes * size.units * size.matrices * size.mix_rows * size.mix_columns;
    return cost;
  }

  /// Products of tiles of tokens with summaries, as in the readout and all token gradients: o =
  /// phi(x) S, or g = X S^T; `sum_bytes` are the key sum's. Every summary is read `times` times,
  /// every feature `slices` times.
  KernelCost read(const char* name, const Tokens& x, double times, double slices,
                  double sum_bytes) const {
    KernelCost cost{name};
    cost.tensor_bytes = features_of(x) + values_of(x);
    cost.summary_bytes = x.summaries * (summary_bytes() + sum_bytes);
    cost.repeated_bytes = (times - 1) * cost.summary_bytes + (slices - 1) * features_of(x) +
                          slices * table_bytes(size, x.entries, x.tokens);
    cost.flops = 2 * planes * x.rows * size.key_dim * size.value_dim;
    return cost;
  }
  /// Heads that read one mixed summary, or one key block's.
  double readers(const Tokens& x) const {
    return static_cast<double>(x.stage.heads) / static_cast<double>(x.stage.matrices);
  }
  double tiles_of_block(const Tokens& x) const {
    return static_cast<double>(x.tiles.tiles_of_block);
  }

  OwnPairs own_keys() const { return {masks_own_block<V> ? Index{1} : 0, false, false}; }
  OwnPairs own_queries() const {
    return {masks_own_block<V> ? problem.shape.group_size() : 0, true, size.normalizes};
  }
  /// A causal block's pairs of own tokens: the other side is read by every tile that sees it,
  /// features by every slice of values; `inner` is the sum of the products' other extents.
  void add_own_pairs(KernelCost& cost, const Tokens& x, const Tokens& other, const OwnPairs& own,
                     double slices, double inner) const {
    if (!own.any()) return;
    const TileTokens::Count pairs = x.tiles.of_pairs(own.later) * (x.stage.all_heads() * own.heads);
    const auto tokens = static_cast<double>(pairs.present);
    const double once = features_of(other) + values_of(other);
    cost.tensor_bytes += once;
    cost.repeated_bytes += storage_bytes * tokens * (slices * size.key_dim + size.value_dim) -
                           once +
                           slices * table_bytes(size, static_cast<double>(pairs.entries), tokens);
    const double rows = tile_rows(extents.key_dim);
    cost.flops += 2 * size.heads * size.own_tile_pairs * rows * rows * inner;
  }

  /// o = phi(x) S, and own tokens, of a slice of value columns. A thread block processes all tiles
  /// of a block with the summary in shared memory; if own tokens overwrite it in between, it is
  /// read again for every tile.
  KernelCost read_out(const char* name, const Tokens& x, const Tokens& other, const OwnPairs& own,
                      bool divides) const {
    const auto slices = static_cast<double>(x.stage.read_out_slices(own));
    KernelCost cost = read(name, x, readers(x) * (own.any() ? tiles_of_block(x) : 1), slices,
                           divides ? key_sum_bytes() : 0);
    add_own_pairs(cost, x, other, own, slices, slices * size.key_dim + size.value_dim);
    cost.count(read_out_bytes(x.stage, x.tiles, divides, own, Update::overwrite));
    return cost;
  }
  /// dx, a thread block per tile; for queries also the denominators and their gradients.
  KernelCost gradient(const char* name, const Tokens& x, const Tokens& other, const OwnPairs& own,
                      Side side) const {
    const bool of_queries = side == Side::queries;
    KernelCost cost = read(name, x, readers(x) * tiles_of_block(x), 1, key_sum_bytes());
    cost.tensor_bytes += features_of(x) + (of_queries ? denominator_bytes() : 0);
    // Queries: q k^T for dm_ii and the denominators, dy v^T and its product with k.
    add_own_pairs(cost, x, other, own, 1, (of_queries ? 2 : 1) * size.key_dim + size.value_dim);
    cost.count(feature_gradient_bytes(x.stage, x.tiles, side, size.normalizes, own, true,
                                      Update::overwrite));
    return cost;
  }

  PathCost path(Direction direction, const NominalGpu& gpu) const {
    const double mixed = queries.summaries;
    PathCost path;
    path.flops_per_second = gpu.sixteen_bit_flops;
    path.summaries_in_cache = std::max(keys.summaries, mixed) * summary_bytes() <= gpu.cache_bytes;
    path.add_beside(tables_cost(size));
    const auto add = [&](KernelCost cost) {
      cost.launches = parts();
      path.add(cost);
    };
    add(summarize("summaries", keys, false));
    if (size.normalizes) path.add_beside(mix_key_sums("mixing of key sums"));
    path.add(mix("mixing", false, keys.summaries * size.matrices, mixed));
    if (direction == Direction::forward) {
      add(read_out("readout", queries, keys, own_keys(), size.normalizes));
      return path;
    }
    add(gradient("dq", queries, keys, own_keys(), Side::queries));
    add(summarize("dS~", queries, true));
    path.add(mixing_gradient());
    path.add_beside(sum_mixing_gradient());
    if (size.normalizes) path.add_beside(mix_key_sums("dm of key sums"));
    if (size.normalizes) path.add_beside(mix_key_sums("dz"));
    path.add(mix("dS", true, mixed, keys.summaries));
    add(read_out("dv", keys, queries, own_queries(), false));
    add(gradient("dk", keys, queries, own_queries(), Side::keys));
    return path;
  }
};

/// The kernels of a call through summaries, on tensors of T.
template <class T, AttentionVariant V>
PathCost summaries_cost(const V& attention, const Problem& problem, const CallSize& size,
                        Direction direction, const NominalGpu& gpu) {
  Arena arena;
  const bool backward = direction == Direction::backward;
  const Index at_once = summary_items_at_once<V, T>(attention, problem, backward);
  return SummariesCost<V>(attention, problem, size, arena, at_once, direction).path(direction, gpu);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
