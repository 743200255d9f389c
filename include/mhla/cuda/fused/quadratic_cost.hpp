// SPDX-License-Identifier: MIT
// Bytes and FLOPs of the fused kernels over pairs of tokens, without summaries, by kernel: W_ts =
// m_{b(t) b(s)} <phi(q_t), phi(k_s)>, y = W V / den.
//
//   forward:   a tile of queries sees every tile of keys that it may see
//   backward:  denominators, their gradients and dq, by tiles of queries; dk and dv, by tiles of
//              keys; the units' parts of dm, by parts of the mixing matrix; the sum of those
//
// Bytes are the kernels' own counts, with every gradient wanted and overwritten.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/quadratic_bytes.hpp>
#include <mhla/cuda/fused/summaries_cost.hpp>
#include <mhla/cuda/kernel_cost.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Costs of the kernels of a call over pairs.
struct PairsCost {
  const CallSize& size;
  const PairBytes& bytes;

  double rows() const { return static_cast<double>(bytes.rows()); }
  double row_bytes() const { return storage_bytes * (size.key_dim + size.value_dim); }
  /// From L2, for one head: tiles, and the tables that locate and rotate them.
  double from_cache(const Walked& of) const {
    const auto tokens = static_cast<double>(of.tokens);
    return tokens * row_bytes() + table_bytes(size, static_cast<double>(of.entries), tokens);
  }
  /// A pass over all pairs: every token once from memory, tiles again from caches; `walked` bytes
  /// and `tiles` pairs of tiles per head; `inner` is the sum of the products' other extents.
  KernelCost pairs(const char* name, double walked, Index tiles, double inner) const {
    KernelCost cost{name};
    cost.tensor_bytes = (size.queries() + size.keys()) * row_bytes();
    cost.repeated_bytes = std::max(0.0, size.heads * walked - cost.tensor_bytes);
    cost.flops = 2 * size.heads * static_cast<double>(tiles) * rows() * rows() * inner;
    return cost;
  }
  double denominator_bytes() const { return size.normalizes ? 8 * size.queries() : 0; }

  void add_forward(PathCost& path) const {
    const PairBytes::Walk walk = bytes.keys_seen();
    const double own = from_cache(bytes.all(bytes.queries));
    const double weights = static_cast<double>(walk.seeing.tiles * bytes.kept_weights());
    KernelCost cost = pairs("y", own + weights + from_cache(walk.seen), walk.seen.tiles,
                            size.key_dim + size.value_dim);
    cost.count(bytes.attend(walk));
    path.add(cost);
  }
  void add_backward(PathCost& path) const {
    const double d = size.key_dim;
    const double e = size.value_dim;
    const PairBytes::Walk seen = bytes.keys_seen();
    const PairBytes::Walk seeing = bytes.queries_that_see();
    const PairBytes::MixWalk mixing = bytes.mixing_pairs();
    const auto weights = [&](const PairBytes::Walk& walk) {
      return static_cast<double>(walk.seeing.tiles * bytes.kept_weights());
    };
    // dy v^T and its product with k; before that, with a normalizer, q k^T and dy v^T.
    const int passes = size.normalizes ? 2 : 1;
    KernelCost query = pairs(
        "dq", from_cache(bytes.all(bytes.queries)) + weights(seen) + passes * from_cache(seen.seen),
        seen.seen.tiles, passes * (d + e));
    query.tensor_bytes += storage_bytes * size.queries() * d + denominator_bytes();
    query.count(bytes.query_gradient(seen, true, Update::overwrite));
    path.add(query);
    // q k^T, dy v^T, and their products with dy and q.
    KernelCost key = pairs("dk, dv",
                           from_cache(bytes.all(bytes.keys)) / size.group_size + weights(seeing) +
                               from_cache(seeing.seen),
                           seeing.seen.tiles, 2 * (d + e));
    key.tensor_bytes += storage_bytes * size.keys() * (d + e) + denominator_bytes();
    key.count(bytes.key_gradient(seeing, true, true, Update::overwrite));
    path.add(key);
    // q k^T and dy v^T once more.
    const MovedBytes of_mixing = bytes.mixing_gradient(mixing);
    KernelCost mix = pairs("dm", from_cache(mixing.queries) + from_cache(mixing.keys),
                           mixing.queries.tiles, d + e);
    const auto parts = static_cast<double>(of_mixing.written);
    mix.tensor_bytes += parts + denominator_bytes();
    mix.count(of_mixing);
    path.add(mix);
    path.add_beside(KernelCost{"sums of dm", parts});
  }
};

/// The kernels of a call over pairs of tokens.
template <AttentionVariant V>
PathCost quadratic_cost(const V& attention, const Problem& problem, const CallSize& size,
                        Direction direction, const NominalGpu& gpu) {
  const PairBytes bytes(attention, problem);
  const PairsCost cost{size, bytes};
  PathCost path;
  path.flops_per_second = gpu.sixteen_bit_flops;
  path.add_beside(tables_cost(size));
  if (direction == Direction::forward) {
    cost.add_forward(path);
  } else {
    cost.add_backward(path);
  }
  return path;
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
