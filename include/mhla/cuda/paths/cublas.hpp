// SPDX-License-Identifier: MIT
// The cuBLAS path, which runs every call: tensors go through panels in the accumulator type, blocks
// padded to the longest, with element-wise kernels around the products.
#pragma once

#include <mhla/cuda/call.hpp>
#include <mhla/cuda/roofline.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Instructions of a thread for an element of a panel: 8 if it is gathered, 10 with phi, 21 if it
/// is rotated too.
inline constexpr double element_instructions = 15;

/// Costs of the stages of a call.
template <class V, class T>
struct CublasCost {
  static constexpr double storage = sizeof(T);
  static constexpr double accumulator = sizeof(Accumulator<T>);
  CallSize<V> size;

  // Rows of panels, of queries and of keys.
  double query_rows = size.heads * size.query_blocks * size.query_block_tokens;
  double key_rows = size.units * size.key_blocks * size.key_block_tokens;
  // FLOPs of the products: with summaries of all keys and of all queries, and of mixing.
  double of_keys = 2 * key_rows * size.summary;
  double of_queries = 2 * query_rows * size.summary;
  double of_mixing = 2 * size.units * size.matrices * size.block_pairs() * size.summary;
  /// Of a causal block's scores, or another product over pairs of its tokens and `dim`.
  double of_own_blocks(double dim) const { return 2 * query_rows * size.query_block_tokens * dim; }

  /// Tokens to rows of panels, or back; features are rotated there, too, and go by way of other
  /// rows if their map sees whole ones.
  KernelCost pack(double tokens, double rows, bool features, double tensors = 1) const {
    const double dim = features ? size.feature_dim : size.value_dim;
    const double panels = features && rotates<V> ? 2 : 1;
    KernelCost cost{tensors * storage * tokens * (features ? size.key_dim : dim) +
                    panels * accumulator * rows * dim};
    if (features && is_rowwise<V>) {
      cost.tensor_bytes += 2 * accumulator * rows * size.key_dim;
      ++cost.launches;
    }
    cost.instructions = cost.launches * element_instructions * rows * dim / 32;  // of warps
    return cost;
  }
  /// A product of panels of tokens with summaries.
  KernelCost product(double rows, double summaries, double flops) const {
    return {accumulator * rows * (size.feature_dim + size.value_dim),
            accumulator * summaries * size.summary, 0, flops};
  }
  /// A pass over features with a number or a key sum for each row or block.
  KernelCost sums(double rows, double passes) const {
    KernelCost cost{passes * accumulator * rows * size.feature_dim};
    cost.launches = passes;
    return cost;
  }
  /// One call for every sequence and matrix; if causal, a corner and a call for every 16 rows, each
  /// of which reads what the rows before it read. Of a structured mixing a call for every product,
  /// and another for a triangle's corners, which takes all units.
  KernelCost mixing() const {
    const double from = size.key_summaries * size.matrices;
    KernelCost cost;
    cost.summary_bytes = accumulator * (from + size.mixed_summaries) * size.summary;
    cost.flops = of_mixing;
    if constexpr (is_structured<V>) {
      const double between = size.units * size.matrices * size.number(size.e.between);
      cost.summary_bytes += 2 * accumulator * between * size.summary;
      cost.launches = 0;
      size.for_each_product([&](const MixingProduct& product) {
        cost.launches += size.matrices * (product.triangular ? 2 : 1);
      });
    } else {
      const double groups = is_causal<V> ? tiles_of(size.mix_rows, 16) : 1;
      cost.cached_bytes = accumulator * from * size.summary * (groups - 1) / 2;
      cost.launches = size.sequences() * size.mix_heads * (is_causal<V> ? 1 + groups : 1);
    }
    return cost;
  }
  /// Scores of a causal block, `arrays` of them, in slabs; `passes` of operands over `flops`.
  KernelCost own_blocks(double arrays, double passes, double flops) const {
    const double slabs = size.group_size * tiles_of(size.query_block_tokens, slab_tokens);
    const double scores = query_rows * size.query_block_tokens;
    const double triangular = 1 + tiles_of((std::min)(size.query_block_tokens, 64.0), 16);
    KernelCost cost;
    cost.tensor_bytes = accumulator * passes * query_rows * (size.feature_dim + size.value_dim);
    cost.cached_bytes = 4 * accumulator * arrays * scores;
    cost.flops = flops;
    cost.launches = slabs * arrays * (2 + triangular);
    return cost;
  }

  void add_stages(PathCost& path, Direction direction) const {
    constexpr bool own = is_causal_within_block<V>;
    const double d = size.feature_dim;
    const double e = size.value_dim;
    path.add(pack(size.keys, key_rows, true));                 // phi(k)
    path.add(pack(size.keys, key_rows, false));                // v
    path.add(product(key_rows, size.key_summaries, of_keys));  // summaries
    if (normalizes<V>) path.add(sums(key_rows, 1));            // key sums
    path.add(mixing());
    path.add(pack(size.queries, query_rows, true));              // phi(q)
    if (normalizes<V>) path.add(sums(query_rows, own ? 3 : 1));  // denominators
    if (direction == Direction::forward) {
      path.add(product(query_rows, size.mixed_summaries, of_queries));  // readout
      if (own) path.add(own_blocks(1, 2, of_own_blocks(d + e)));        // own blocks
      path.add(pack(size.queries, query_rows, false));                  // y
      return;
    }
    path.add(pack(size.queries, query_rows, false));                    // dy
    path.add(product(query_rows, size.mixed_summaries, of_queries));    // dS~
    path.add(product(query_rows, size.mixed_summaries, of_queries));    // dQ
    if (own) path.add(own_blocks(2, 6, of_own_blocks(3 * d + 2 * e)));  // own blocks
    if (normalizes<V>) path.add(sums(query_rows, own ? 6 : 4));         // gradients of denominators
    path.add(pack(size.queries, query_rows, true, 2));                  // dq
    KernelCost dm = mixing();
    dm.cached_bytes = 0;  // a full product, not a triangle
    if (!is_structured<V>) dm.launches = size.sequences() * size.mix_heads;
    path.add(dm);
    path.add(mixing());                                        // dS
    path.add(product(key_rows, size.key_summaries, of_keys));  // dV
    path.add(pack(size.keys, key_rows, false));                // dv
    path.add(product(key_rows, size.key_summaries, of_keys));  // dK
    if (normalizes<V>) path.add(sums(key_rows, own ? 2 : 1));  // dz
    path.add(pack(size.keys, key_rows, true, 2));              // dk
  }
};

/// Runs every call.
struct CublasPath {
  static constexpr PathTraits traits{.id = CudaPath::cublas, .name = "cublas", .is_fused = false};
  template <class V, class T>
  using Plan = cuda::Plan<V, Accumulator<T>>;

  template <class V, class T>
  static PathCost cost(const Call<V, T>& call, const NominalGpu& gpu) {
    const CublasCost<V, T> cost{{call.attention, call.problem}};
    PathCost path{.flops_per_second = std::is_same_v<Accumulator<T>, double> ? gpu.double_flops
                                      : call.products == FloatProducts::tf32 ? gpu.tf32_flops
                                                                             : gpu.float_flops};
    path.add(cost.size.tables());
    cost.add_stages(path, call.direction);
    // Parts of the batch repeat the launches.
    const Index at_once =
        items_at_once<Plan<V, T>>(call.attention, call.problem, call.is_backward());
    const Index parts = at_once == 0 ? 0 : ceil_div(call.problem.shape.batch, at_once);
    for (int i = 1; i < path.count; ++i) path.kernel[i].launches *= static_cast<double>(parts);
    return path;
  }
  /// y of every query; `Dims` is void, as kernels know no head dimensions.
  template <class Dims, class V, class T>
  static void forward(const ForwardCall<V, T>& call);
  /// The wanted gradients.
  template <class Dims, class V, class T>
  static void backward(const BackwardCall<V, T>& call);
};

}  // namespace cuda

MHLA_NAMESPACE_END
