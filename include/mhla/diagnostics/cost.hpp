// SPDX-License-Identifier: MIT
// What one forward pass costs: FLOPs of its products (an addition or a multiplication each), and
// the elements of its state (arXiv 2601.07832, table 1, with constants).
#pragma once

#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN
namespace diagnostics {

/// \addtogroup diagnostics
/// \{

/// FLOPs of the products of one forward pass, without feature maps, rotations and normalizers,
/// which are linear in the tokens. N tokens, M blocks of n tokens, D features, e = value_dim.
struct ForwardCost {
  Index summaries = 0;    ///< S_b = phi(K_b)^T V_b: 2 N D e, per kv head
  Index mixing = 0;       ///< S~_i = sum_b m_ib S_b: 2 M^2 D e; causal: only the blocks seen;
                          ///< structured: of its products
  Index readout = 0;      ///< phi(Q_i) S~_i: 2 N D e
  Index intra_block = 0;  ///< Causal: scores and values inside a block: 2 n^2 (D + e) per block
  Index state = 0;        ///< elements of all S_b: M D e, per kv head

  /// All of them. \throws ShapeError if they do not fit an Index.
  constexpr Index flops() const {
    return checked_add(checked_add(summaries, mixing), checked_add(readout, intra_block));
  }
};

/// \cond INTERNAL
// The product of sizes; throws ShapeError if it does not fit an Index.
constexpr Index checked_product(std::initializer_list<Index> factors) {
  Index product = 1;
  for (const Index factor : factors) product = checked_mul(product, factor);
  return product;
}
/// \endcond

/// Of MHLA: O(N d^2 + M^2 d^2).
/// \throws ShapeError if `attention` cannot run on `shape`, or a number does not fit an Index.
template <AttentionVariant A>
ForwardCost forward_cost(const A& attention, const Shape& shape) {
  const Problem problem = checked_problem(attention, shape);
  const Index rows = problem.query_blocks;
  const Index summary = checked_mul(problem.feature_dim, shape.value_dim);
  Index pairs = checked_mul(rows, problem.key_blocks);
  if constexpr (is_causal_within_block<A>)
    pairs = (pairs - rows) / 2;  // a query's own block is not mixed
  if constexpr (sight_of<A> == Sight::past_blocks) pairs = (pairs + rows) / 2;

  if constexpr (is_structured<A>) {
    pairs = 0;
    attention.mixing.for_each_product(
        mixing_layout<A>(problem), [&](const MixingProduct& product) { pairs += product.terms(); });
  }

  ForwardCost cost;
  cost.state = checked_product({shape.batch, shape.kv_heads, problem.key_blocks, summary});
  cost.summaries = checked_product({2, shape.batch, shape.kv_heads, shape.key_tokens, summary});
  cost.mixing = checked_product({2, shape.batch, shape.heads, pairs, summary});
  cost.readout = checked_product({2, shape.batch, shape.heads, shape.query_tokens, summary});
  if constexpr (is_causal_within_block<A>) {
    for (Index i = 0; i < rows; ++i) {
      const Index tokens = problem.query_grid.block_extent(i, 2);
      cost.intra_block = checked_add(
          cost.intra_block, checked_product({2, shape.batch, shape.heads, tokens, tokens,
                                             checked_add(problem.feature_dim, shape.value_dim)}));
    }
  }
  return cost;
}

/// FLOPs of softmax attention, scores and values: 2 N^2 (d + e) per head. Causal: half.
inline Index softmax_attention_flops(const Shape& shape) {
  require_tensors(shape);
  return checked_product({2, shape.batch, shape.heads, shape.query_tokens, shape.key_tokens,
                          shape.key_dim + shape.value_dim});
}

/// FLOPs of linear attention: one summary of all keys and one readout, 2 N D e each.
inline Index linear_attention_flops(const Shape& shape, Index feature_dim) {
  require_tensors(shape);
  require_at_least("feature_dim", feature_dim, 0);
  return checked_add(checked_product({2, shape.batch, shape.kv_heads, shape.key_tokens, feature_dim,
                                      shape.value_dim}),
                     checked_product({2, shape.batch, shape.heads, shape.query_tokens, feature_dim,
                                      shape.value_dim}));
}

/// \}

}  // namespace diagnostics
MHLA_NAMESPACE_END
