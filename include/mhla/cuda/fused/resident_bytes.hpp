// SPDX-License-Identifier: MIT
// Bytes that the kernel with all summaries in shared memory requests, exact for calls without
// absent tokens. Needs no CUDA header, so that a cost model can use it.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/moved_bytes.hpp>
#include <mhla/cuda/fused/plan.hpp>
#include <mhla/cuda/fused/token_bytes.hpp>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// A call whose values are cut into `slices`, by phase.
struct ResidentBytes {
  TokenStage stage;
  TileTokens queries;
  TileTokens keys;
  OwnPairs own;
  Index slices;
  Index parts;  // of a sequence: units, matrices and slices
  Index pairs;  // pairs of a query block and a key block that mixing joins, of all sequences
  bool divides;

  template <AttentionVariant V>
  ResidentBytes(const V& attention, const Problem& problem, const Extents<V>& e, Index slice)
      : stage{e.key_dim,          e.value_dim,          1,         rotates<V>,
              e.queries.kv_heads, e.queries.group_size, e.matrices},
        queries(attention, problem.query_grid, problem.shape.batch, tile_rows(e.key_dim)),
        keys(attention, problem.key_grid, problem.shape.batch, tile_rows(e.key_dim)),
        own{masks_own_block<V> ? Index{1} : 0, false, false},
        slices(e.value_dim / slice),
        parts(problem.shape.batch * e.keys.kv_heads * e.matrices * slices),
        pairs(0),
        divides(normalizes<V>) {
    for_each_sequence_side(attention, e, [&](const Sequence& of_queries, const Sequence& of_keys) {
      const MixingWork work(mixing_shape(e, of_queries, of_keys), false);
      for (int row = 0; row < work.rows; ++row) pairs += std::max(0, work.inner_end(row + 1));
    });
  }

  /// Keys and values; every matrix mixes its own summaries.
  MovedBytes summarize() const {
    return {stage.kv_heads * stage.matrices * summarized_bytes(stage, keys, slices), 0};
  }
  /// The matrix, for its two parts, and for every four elements of key sums.
  MovedBytes mix() const {
    return {parts * pairs * (1 + (divides ? stage.key_dim / 4 : 0)) * Index{sizeof(float)}, 0};
  }
  MovedBytes read_out() const {
    return stage.all_heads() * read_out_token_bytes(stage, queries, own, Update::overwrite, slices);
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
