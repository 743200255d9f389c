// SPDX-License-Identifier: MIT
// Upper bounds of the rank of an attention matrix (arXiv 2601.07832, table 1, sharpened: the table
// omits the number of tokens and the rank of the mixing matrix).
#pragma once

#include <mhla/core/shape.hpp>
#include <mhla/policy/block_geometry.hpp>

MHLA_NAMESPACE_BEGIN
namespace diagnostics {

/// \addtogroup diagnostics
/// \{

/// Linear attention phi(Q) phi(K)^T: min(query tokens, key tokens, D), D = feature_dim.
/// \throws ShapeError if one of them is negative.
constexpr Index linear_attention_rank_bound(Index query_tokens, Index key_tokens,
                                            Index feature_dim) {
  const Index tokens = query_tokens < key_tokens ? query_tokens : key_tokens;
  if (tokens < 0) require_at_least("tokens", tokens, 0);
  if (feature_dim < 0) require_at_least("feature_dim", feature_dim, 0);
  return tokens < feature_dim ? tokens : feature_dim;
}

/// sum_b min(n_b, D) over the blocks of one side, with n_b tokens in block b: what that side's
/// features can span, block by block. At most the number of tokens.
/// \throws ShapeError if a block has no extent, or feature_dim or an extent is negative.
constexpr Index block_rank_bound(const Grid& grid, Index feature_dim) {
  for (const Index extent : grid.block)
    if (extent < 1)
      throw ShapeError(
          {"mhla: grid: a block has an extent of ", extent, "; it must be at least 1"});
  for (const Index extent : grid.extent)
    if (extent < 0) require_at_least("grid.extent", extent, 0);
  if (feature_dim < 0) require_at_least("feature_dim", feature_dim, 0);
  Index sum = 0;
  for (Index b = 0; b < grid.num_blocks(); ++b) {
    const Index tokens =
        grid.block_extent(b, 0) * grid.block_extent(b, 1) * grid.block_extent(b, 2);
    sum += tokens < feature_dim ? tokens : feature_dim;
  }
  return sum;
}

/// MHLA, Bidirectional or BlockCausal: the smaller side's sum_b min(n_b, D). Under Causal there is
/// no such bound: the triangles on the diagonal raise the rank up to the number of tokens.
constexpr Index mhla_rank_bound(const Grid& query_grid, const Grid& key_grid, Index feature_dim) {
  const Index by_query = block_rank_bound(query_grid, feature_dim);
  const Index by_key = block_rank_bound(key_grid, feature_dim);
  return by_query < by_key ? by_query : by_key;
}

/// The bound for a mix of known rank r: at most r D, since such a mix is a sum of r outer products,
/// and the attention matrix a sum of r matrices diag(u) phi(Q) phi(K)^T diag(w). Under BlockCausal
/// r is the rank of mix with zeros above the diagonal.
constexpr Index mhla_rank_bound(const Grid& query_grid, const Grid& key_grid, Index feature_dim,
                                Index mix_rank) {
  if (mix_rank < 0) require_at_least("mix_rank", mix_rank, 0);
  const Index by_blocks = mhla_rank_bound(query_grid, key_grid, feature_dim);
  const Index by_mix = checked_mul(mix_rank, feature_dim);
  return by_blocks < by_mix ? by_blocks : by_mix;
}

/// \}

}  // namespace diagnostics
MHLA_NAMESPACE_END
