// SPDX-License-Identifier: MIT
// The path over pairs of tokens, without summaries: W_ts = m_{b(t) b(s)} <phi(q_t), phi(k_s)>,
// y = W V / den.
//
//   forward:   a tile of queries sees every tile of keys that it may see
//   backward:  denominators, their gradients, dq and parts of dm, by tiles of queries; dk and dv,
//              by tiles of keys; the sum of dm's parts
#pragma once

#include <mhla/cuda/call.hpp>
#include <mhla/cuda/fused/token_shapes.hpp>
#include <mhla/cuda/roofline.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

namespace fused {

/// The workspace of a call over pairs.
template <class V>
struct PairPlan : TablePlan<V, float, true> {
  using Base = TablePlan<V, float, true>;
  using Base::Base;
  using Base::extents;
  using Base::take_back;

  // 1 / den of every query, and the gradient of den; parts of dmix, of every query head and run of
  // a block's queries, and their sums over packed sequences.
  Span<float> weights = take_back(extents.queries.count(), 1, normalizes<V>);
  Span<float> sum_weights = take_back(extents.queries.count(), 1, normalizes<V>);
  Index runs = runs_of_block(extents.queries.table.block_tokens);
  Index grad_parts =
      checked_mul(extents.queries.units(), checked_mul(extents.queries.group_size, runs));
  Span<float> grad_mixing =
      take_back(checked_mul(grad_parts, extents.queries.table.blocks), extents.mix_columns);
  Span<float> packed_grad_mixing = take_back(grad_parts, extents.mixing_size(), is_packed<V>);
};

}  // namespace fused

/// Costs of the kernels of a call.
template <class V, class T>
struct PairsCost {
  const Call<V, T>& call;
  CallSize<V> size{call.attention, call.problem};

  static constexpr double element = 2;  // bytes
  double d = filled(size.key_dim, 16);  // of products
  double e = filled(size.value_dim, 16);

  fused::PairTiles tiles() const {
    const Shape& shape = call.problem.shape;
    return fused::pair_tiles(shape.key_dim, shape.value_dim, rotates<V> && normalizes<V>);
  }
  /// Tiles of a head's queries and keys that see each other, sequence by sequence.
  double tile_pairs(Index own, Index others) const {
    const Index query_block = call.problem.query_grid.block_tokens();
    const Index key_block = call.problem.key_grid.block_tokens();
    Index pairs = 0;
    for_each_sequence(call.attention, call.problem.query_grid, [&](const Sequence& sequence) {
      const Index entries = sequence.blocks * query_block;
      const Index key_blocks = is_packed<V> ? sequence.blocks : call.problem.key_blocks;
      if (!is_causal<V>) {
        pairs += ceil_div(entries, own) * ceil_div(key_blocks * key_block, others);
        return;
      }
      for (Index first = 0; first < entries; first += own) {
        const Index end = (std::min)(first + own, entries);
        pairs += ceil_div(
            is_causal_within_block<V> ? end : ceil_div(end, query_block) * query_block, others);
      }
    });
    return static_cast<double>(pairs);
  }

  /// A pass over all pairs of tiles: every token once from memory, the others of each tile from L2,
  /// `passes` times; `inner` is the sum of the products' other extents.
  KernelCost pass(Index own, Index others, int passes, double inner) const {
    const double pairs = size.heads * tile_pairs(own, others);
    const auto rows = static_cast<double>(own), columns = static_cast<double>(others);
    const double row = element * (size.key_dim + size.value_dim);
    KernelCost cost;
    cost.tensor_bytes = (size.queries + size.keys) * row;
    cost.cached_bytes = passes * pairs * columns * (row + 16);
    cost.flops = 2 * pairs * rows * columns * inner;
    cost.instructions = 8 * pairs * pair_instructions(rows, columns, inner);
    return cost;
  }
  PathCost path(const NominalGpu& gpu) const {
    PathCost path{.flops_per_second = gpu.sixteen_bit_flops};
    path.add(size.tables());
    if (!call.is_backward()) {
      path.add(pass(tiles().own, tiles().others, 1, d + e));
      return path;
    }
    const double numbers = normalizes<V> ? 8 * size.queries : 0;  // of queries, for the others
    // dy v^T, its product with k, and q k^T for dm; before that, with a normalizer, both once more.
    const int passes = normalizes<V> ? 2 : 1;
    KernelCost query = pass(tiles().own, tiles().others, passes, passes * (d + e) + d);
    query.instructions *= 1.2;  // sums over blocks, of dm
    const auto runs =
        static_cast<double>(fused::runs_of_block(call.problem.query_grid.block_tokens()));
    const double parts = size.heads * runs * size.mix_rows * size.mix_columns;
    query.tensor_bytes +=
        element * size.queries * size.key_dim + numbers + 12 * parts;  // cleared, too
    query.launches += 2;
    path.add(query);
    // q k^T, dy v^T, and their products with dy and q.
    KernelCost key = pass(tiles().own_of_two(), tiles().others, 1, 2 * (d + e));
    key.instructions *= 1.2;  // features of the queries, for every tile of keys
    key.tensor_bytes += element * size.keys * (size.key_dim + size.value_dim) + numbers;
    path.add(key);
    return path;
  }
};

/// Fused kernels over pairs of tokens.
struct QuadraticPath {
  static constexpr PathTraits traits{
      .id = CudaPath::quadratic, .name = "quadratic", .keeps_state = false};
  template <class V, class T>
  using Plan = fused::PairPlan<V>;

  template <class V, class T>
  static PathCost cost(const Call<V, T>& call, const NominalGpu& gpu) {
    return PairsCost<V, T>{call}.path(gpu);
  }
  template <class Dims, class V, class T>
  static void forward(const ForwardCall<V, T>& call);
  template <class Dims, class V, class T>
  static void backward(const BackwardCall<V, T>& call);
};

}  // namespace cuda

MHLA_NAMESPACE_END
