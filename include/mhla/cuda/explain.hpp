// SPDX-License-Identifier: MIT
// What a call does on a CudaDevice, in words and numbers, before it is made. Needs no CUDA header.
#pragma once

#include <initializer_list>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/pipeline.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/variant.hpp>
#include <string>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Which algorithm runs a call.
enum class Path {
  cublas  ///< block summaries as batches of cuBLAS products, with element-wise kernels around them
};

/// The numbers behind explain(attention, shape, device), of one direction.
struct CallCost {
  Path path = Path::cublas;
  Index workspace_bytes = 0;
  Index parts = 0;          ///< of the batch, one after the other
  Index items_at_once = 0;  ///< of the batch, in each part but the last
  Index flops = 0;          ///< of the products, blocks padded to the longest
  Index bytes_read = 0;     ///< of q, k, v, mix and dy, each once
  Index bytes_written = 0;  ///< of y, or of dq, dk, dv and dmix
};

/// The product of sizes; throws ShapeError where it does not fit an Index.
inline Index product_of(std::initializer_list<Index> sizes) {
  Index product = 1;
  for (const Index size : sizes) product = checked_mul(product, size);
  return product;
}

/// What forward_into, or backward_into with every gradient wanted, takes. Feature maps, rotations
/// and normalizers are not among the operations: they are linear in the tokens.
template <StorageScalar T, AttentionVariant V>
CallCost call_cost(const V& attention, const Shape& shape, const CudaDevice&, bool backward) {
  using A = Accumulator<T>;
  const Problem problem = checked_problem(attention, shape);
  CallCost cost;
  cost.items_at_once = items_at_once<V, A>(attention, problem, backward);
  cost.parts = cost.items_at_once == 0 ? 0 : ceil_div(shape.batch, cost.items_at_once);
  cost.workspace_bytes = plan_bytes<V, A>(attention, problem, cost.items_at_once, backward);

  Arena arena;
  const Extents<V> e(arena, attention, problem, shape.batch);
  const Index summary = e.summary_size();
  Index pairs = 0;  // of query block and key block that a matrix of mix joins
  for_each_sequence(attention, problem.query_grid, [&](const Sequence& s) {
    const Index keys = is_packed<V> ? s.blocks : e.keys.table.blocks;
    if constexpr (masks_own_block<V>) {
      pairs += s.blocks * (s.blocks - 1) / 2;
    } else if constexpr (sees_past_only<V>) {
      pairs += s.blocks * (s.blocks + 1) / 2;
    } else {
      pairs += checked_mul(s.blocks, keys);
    }
  });
  const Index of_keys = product_of({2, e.keys.count(), summary});        // S_b, and each adjoint
  const Index of_queries = product_of({2, e.queries.count(), summary});  // phi(q) S~_i, likewise
  const Index of_mixing = product_of({2, e.units(), e.matrices, pairs, summary});
  // A causal block's scores, or whatever else is a product over pairs of its tokens and `dim`.
  const auto own_blocks = [&](Index dim) {
    return masks_own_block<V>
               ? product_of({2, e.queries.count(), e.queries.table.block_tokens, dim})
               : 0;
  };
  const Index queries = product_of({shape.batch, shape.heads, shape.query_tokens, shape.key_dim});
  const Index keys = product_of({shape.batch, shape.kv_heads, shape.key_tokens, shape.key_dim});
  const Index values = product_of({shape.batch, shape.kv_heads, shape.key_tokens, shape.value_dim});
  const Index outputs = product_of({shape.batch, shape.heads, shape.query_tokens, shape.value_dim});
  const Index mix = product_of({shape.mix_heads, shape.mix_query_blocks, shape.mix_key_blocks});
  const auto bytes = [](Index elements, Index weights) {
    return checked_add(checked_mul(elements, static_cast<Index>(sizeof(T))),
                       checked_mul(weights, static_cast<Index>(sizeof(A))));
  };
  const Index d = e.feature_dim;
  if (backward) {
    // Summaries and mixing once more, then two adjoints of every product but the readout's own.
    cost.flops = 3 * of_keys + 3 * of_mixing + 2 * of_queries + own_blocks(3 * d + 2 * e.value_dim);
    cost.bytes_read = bytes(queries + keys + values + outputs, mix);
    cost.bytes_written = bytes(queries + keys + values, mix);
  } else {
    cost.flops = of_keys + of_mixing + of_queries + own_blocks(d + e.value_dim);
    cost.bytes_read = bytes(queries + keys + values, mix);
    cost.bytes_written = bytes(outputs, 0);
  }
  return cost;
}

inline std::string described(const CallCost& cost, const char* direction, const char* products) {
  const auto number = [](Index n) { return std::to_string(n); };
  return std::string(direction) + ": path cublas, the one there is; products in " + products +
         "\n  workspace " + number(cost.workspace_bytes) + " bytes, of which " +
         number(cublas_workspace_bytes) + " are for cuBLAS\n  batch in " + number(cost.parts) +
         (cost.parts == 1 ? " part of " : " parts of up to ") + number(cost.items_at_once) +
         "\n  products " + number(cost.flops) + " FLOP\n  tensors " + number(cost.bytes_read) +
         " bytes read, " + number(cost.bytes_written) + " bytes written\n";
}

}  // namespace cuda

/// Which path forward_into and backward_into take on the device, and why; how much workspace, in
/// how many parts of the batch; operations of the products, and bytes of the tensors.
/// \code
/// std::cout << mhla::explain<float>(attention, shape, cuda);
/// \endcode
/// \throws ShapeError where attention and shape do not fit.
template <StorageScalar T, AttentionVariant V>
std::string explain(const V& attention, const Shape& shape, const CudaDevice& device) {
  const char* const products = std::is_same_v<Accumulator<T>, double> ? "double"
                               : device.products() == FloatProducts::tf32
                                   ? "TF32, as the device asks for"
                                   : "float, never TF32";
  return cuda::described(cuda::call_cost<T>(attention, shape, device, false), "forward", products) +
         cuda::described(cuda::call_cost<T>(attention, shape, device, true), "backward", products);
}

MHLA_NAMESPACE_END
