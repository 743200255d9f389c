// SPDX-License-Identifier: MIT
// A variant and a shape that fit together, the input of every backend; the names of the stages of a
// pass, and rows of sums as stages leave them and as they travel from rank to rank.
#pragma once

#include <mhla/policy/batch_layout.hpp>
#include <optional>

MHLA_NAMESPACE_BEGIN

/// A stage of a pass, each a member of Stages.
/// \ingroup stages
enum class Stage {
  summarize,           ///< S and z of key blocks
  read_out,            ///< y of query blocks
  read_out_gradient,   ///< dq, rows of dmix, dS~ and dz~ of query blocks
  mix_gradient,        ///< dS and dz of key blocks
  advance,             ///< a recurrence's states after blocks
  advance_gradient,    ///< its dS and dz, rows of dmix, and gradients of the states before blocks
  summarize_gradient,  ///< dk and dv of key blocks
};

/// How summaries S, and dS~ in a backward pass, travel.
/// \ingroup distributed
enum class Wire {
  exact,  ///< in the accumulator type
  /// S and dS~ as bfloat16, key sums and what belongs to them in the accumulator type: half the
  /// bytes. A rank rounds its own too, so that the bits are the same for any number of ranks.
  bfloat16,
};

/// \cond INTERNAL
/// A checked call: its extents, the grids of both sides (packed: of the longest sequence), and the
/// sizes that follow from them.
struct Problem {
  Shape shape;
  Grid query_grid;
  Grid key_grid;
  Index query_blocks = 0;
  Index key_blocks = 0;
  /// The blocks whose tokens are there: all, or those of a stage. The first of query_blocks and
  /// key_blocks is theirs.
  BlockRange queries;
  BlockRange keys;
  /// The blocks whose tokens tensors hold: these, or more.
  BlockRange held_queries;
  BlockRange held_keys;
  Index sequences = 0;         ///< that share no keys: the batch, or the sequences packed into it
  Index all_kv_heads = 0;      ///< kv heads of the whole call, of which these may be some
  Index feature_dim = 0;       ///< D, the length of phi's output
  std::optional<Stage> stage;  ///< that it is alone; none: the whole pass

  /// The coordinates of the tokens that are there.
  MHLA_ONCE_A_CALL GridBox grid_box() const {
    return hull(query_grid.grid_box(queries), key_grid.grid_box(keys));
  }
};

/// The blocks that the mixing of a call maps from and to; of a stage of a recurrence, its own.
template <class V>
MHLA_ONCE_A_CALL MixingLayout mixing_layout(const Problem& problem) {
  MixingLayout layout =
      MixingLayout::of(V::GeometryType::rank, problem.query_grid, problem.key_grid, sight_of<V>);
  if constexpr (is_causal<V> && is_structured<V>) {
    layout.queries[2] = layout.keys[2] = problem.query_blocks;
    layout.before = problem.queries.first > 0;
    layout.after = problem.queries.first + problem.query_blocks < problem.query_grid.num_blocks();
  }
  return layout;
}

// Checks the numbers of a variant that need no shape. Throws ShapeError.
template <AttentionVariant A>
MHLA_ONCE_A_CALL void require_settings(const A& attention) {
  const auto require_valid = [](const auto& policy) {
    if constexpr (requires { policy.require_valid(); }) policy.require_valid();
  };
  require_valid(attention.feature_map);
  require_valid(attention.normalizer);
  require_valid(attention.rotation);
  require_not_negative("scale", attention.scale);
  require_enumerator("precision", attention.precision, Precision::fast);
  require_enumerator("path", attention.path, Path::quadratic);
  if (attention.path == Path::quadratic && (is_structured<A> || mixes_products<A>))
    throw ShapeError(
        "mhla: path: Path::quadratic needs DenseMixing without MixedProduct; Path::automatic takes "
        "a path that can");
}

// The rest of checked_problem, once sequences and grids are known.
template <AttentionVariant A>
MHLA_ONCE_A_CALL Problem checked_problem(const A& attention, const Shape& shape, Index sequences,
                                         const Grid& query_grid, const Grid& key_grid) {
  require_settings(attention);
  Problem problem;
  problem.shape = shape;
  problem.sequences = sequences;
  problem.all_kv_heads = shape.kv_heads;
  problem.query_grid = query_grid;
  problem.key_grid = key_grid;
  problem.query_blocks = query_grid.num_blocks();
  problem.key_blocks = key_grid.num_blocks();
  problem.queries = problem.held_queries = {0, problem.query_blocks};
  problem.keys = problem.held_keys = {0, problem.key_blocks};

  const MixingLayout layout = mixing_layout<A>(problem);
  if constexpr (is_structured<A>) {
    attention.mixing.require_parameters(layout, shape.mix_query_blocks, shape.mix_key_blocks);
  } else {
    constexpr bool any_length = is_causal<A> || is_packed<A>;
    attention.mixing.require_parameters(layout, shape.mix_query_blocks, shape.mix_key_blocks,
                                        any_length);
  }

  problem.feature_dim = feature_dim(attention.feature_map, shape.key_dim);
  const auto require_features = [&](const char* argument, Index heads, Index tokens) {
    require_tensor(argument, {{"batch", shape.batch},
                              {"heads", heads},
                              {"tokens", tokens},
                              {"feature_dim", problem.feature_dim}});
  };
  require_features("feature_map(q)", shape.heads, shape.query_tokens);
  require_features("feature_map(k)", shape.kv_heads, shape.key_tokens);
  if constexpr (requires { attention.feature_map.projection; }) {
    require_extent("feature_map.projection", "key_dim", attention.feature_map.projection.extent[1],
                   shape.key_dim, "the projection is [features, key_dim]");
  }
  if constexpr (rotates<A>) {
    if (problem.feature_dim % 2 != 0)
      throw ShapeError(
          {"mhla: rotation: phi gives ", problem.feature_dim,
           " features but a rotation turns pairs; the number of features must be even"});
  }

  if constexpr (mixes_products<A> || is_causal<A>) {
    if (query_grid != key_grid)
      throw ShapeError(
          "mhla: key_blocks: MixedProduct, Causal and BlockCausal need the same "
          "tokens and blocks on the query and the key side");
  }
  if constexpr (mixes_products<A>) {
    if (problem.query_grid.ragged())
      throw ShapeError(
          "mhla: blocks: MixedProduct needs blocks of one size but the grid does not "
          "divide evenly; use MixedKeySum for a ragged grid");
  }
  return problem;
}

/// The grids of queries and of keys. Throws ShapeError if they do not have these tokens.
template <AttentionVariant A>
std::pair<Grid, Grid> checked_grids(const A& attention, Index query_tokens, Index key_tokens) {
  const Grid query_grid = checked_grid(attention.blocks, query_tokens, "blocks", "q");
  if (attention.key_blocks.unset())
    return {query_grid, checked_grid(attention.blocks, key_tokens, "blocks", "k")};
  return {query_grid, checked_grid(attention.key_blocks, key_tokens, "key_blocks", "k")};
}

/// Throws ShapeError unless `attention` can run on tensors of `shape`; of packed sequences mix must
/// be large enough for the longest.
template <AttentionVariant A>
MHLA_ONCE_A_CALL Problem checked_problem(const A& attention, const Shape& shape) {
  require_consistent(shape);
  if constexpr (is_packed<A>) {
    const Grid grid =
        checked_grid(attention.blocks, checked_longest(attention, shape), "blocks", "q");
    return checked_problem(attention, shape, attention.sequences(), grid, grid);
  } else {
    const TokenMasks masks = masks_of(attention);
    masks.require_fit(shape);
    if (is_causal<A>) masks.require_one();
    const auto [query_grid, key_grid] =
        checked_grids(attention, shape.query_tokens, shape.key_tokens);
    return checked_problem(attention, shape, shape.batch, query_grid, key_grid);
  }
}

// What a row consists of: `count` times S [summary], z [key_sum].
struct SumsLayout {
  Index count;
  Index summary;
  Index key_sum;

  Index elements() const { return checked_mul(count, checked_add(summary, key_sum)); }
  // Bytes of a row that travels.
  template <class A>
  Index bytes(Wire wire) const {
    constexpr auto size = static_cast<Index>(sizeof(A));
    if (wire == Wire::exact) return checked_mul(elements(), size);
    const Index rounded = checked_mul(checked_mul(count, summary), sizeof(BFloat16));
    return checked_mul(checked_add(ceil_div(rounded, size), checked_mul(count, key_sum)), size);
  }
};
// A row with the sums of every unit of a call, for each of some matrices.
template <AttentionVariant V>
SumsLayout sums_layout(const Problem& problem, Index matrices) {
  const Shape& shape = problem.shape;
  return {checked_mul(checked_mul(shape.batch, shape.kv_heads), matrices),
          checked_mul(problem.feature_dim, shape.value_dim),
          normalizes<V> ? problem.feature_dim : 0};
}
/// \endcond

MHLA_NAMESPACE_END
