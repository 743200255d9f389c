// SPDX-License-Identifier: MIT
// The sizes of a call and of its tiles, and how work is divided: rows and columns of the mixing
// matrix into groups, value columns of a head into parts.
#pragma once

#include <mhla/cpu/block_table.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

template <class L>
inline constexpr Index max_tokens_of_tile =
    is_causal_within_block<L> ? max_causal_tile_tokens : max_tile_tokens;

/// The sizes that every stage uses.
struct Extents {
  Index query_blocks;
  Index key_blocks;
  Index key_dim;
  Index feature_dim;
  Index value_dim;
  Index group_size;    // query heads per kv head
  Index matrices;      // mixing matrices per unit: 1 shared, or one per query head
  Index tile_tokens;   // of the longest tile
  Index block_tokens;  // of the longest query block
  Index key_block_tokens;
  Index query_tokens;
  Index key_tokens;  // of the longest sequence

  Index summary_size() const { return checked_mul(feature_dim, value_dim); }
  /// Distance between summaries: an odd number of cache lines, so that the same element of many
  /// summaries does not map to the same cache set.
  Index summary_stride() const {
    constexpr Index line = 16;
    return checked_mul(ceil_div(summary_size(), line) | 1, line);
  }

  MHLA_ONCE_A_CALL explicit Extents(const Problem& problem, Index max_tokens = max_tile_tokens,
                                    TilesOf tiles_of = TilesOf::block)
      : query_blocks(problem.query_blocks),
        key_blocks(problem.key_blocks),
        key_dim(problem.shape.key_dim),
        feature_dim(problem.feature_dim),
        value_dim(problem.shape.value_dim),
        group_size(problem.shape.group_size()),
        matrices(problem.shape.matrices()),
        block_tokens(problem.query_grid.block_tokens()),
        key_block_tokens(problem.key_grid.block_tokens()),
        query_tokens(problem.shape.query_tokens),
        key_tokens(problem.key_grid.num_tokens()) {
    const Index longest = tiles_of == TilesOf::block
                              ? (std::max)(block_tokens, key_block_tokens)
                              : (std::max)(problem.query_grid.num_tokens(), key_tokens);
    tile_tokens = (std::min)(longest, max_tokens);
  }
};

/// Rows of the mixing matrix handled at once: groups of nearly equal size, each of whole units.
struct RowGroups {
  Index rows;
  Index most;  // rows of a group
  Index unit;
  Index count;

  RowGroups(Index total, Index max_rows, Index unit_rows = 1)
      : rows(total),
        most((std::max)(max_rows / unit_rows, Index{1}) * unit_rows),
        unit(unit_rows),
        count(ceil_div(total, most)) {}

  Index begin(Index group) const {
    return (std::min)(rows, even_split(ceil_div(rows, unit), count, group) * unit);
  }
  Index size(Index group) const { return begin(group + 1) - begin(group); }
  /// For any sequence of up to this many rows; a shorter one may be cut into larger groups.
  Index max_size() const { return (std::min)(rows, most); }
};

/// Blocks mixed at once if all summaries are in cache.
inline constexpr Index max_mixing_rows = 16;

/// Floats of summaries that fit into L2 beside panels of tokens.
inline constexpr Index cached_summaries = Index{9} << 15;

/// The groups of `rows` mixtures of `terms` summaries each, `stride` apart. If the cache holds all
/// terms, as many as one tile of sums: the mixed summaries are then read out from cache. If terms
/// come from memory for every group, more: as many as fit into the cache, but at least some tiles,
/// and more the more terms there are.
inline RowGroups mixing_groups(Sight sight, Index rows, Index terms, Index stride) {
  constexpr Index least = 42;
  constexpr Index most = 112;
  const Index held = cached_summaries / stride;
  if (terms <= held)
    return sight == Sight::all ? RowGroups(rows, max_mixing_rows)
                               : RowGroups(rows, triangle_rows, triangle_rows);
  return {rows, std::clamp((std::max)(held, terms / 8), least, most),
          sight == Sight::all ? Index{1} : triangle_rows};
}
template <class L>
RowGroups row_groups(const Extents& e, Index rows, Index terms) {
  return mixing_groups(sight_of<L>, rows, terms, e.summary_stride());
}

/// Columns of dM handled at once: for few blocks such that every slot has work, for many blocks
/// such that each dS~_i is read for many columns.
inline Index matrix_gradient_cols(Index cols) { return cols < 128 ? 32 : 64; }

/// The groups of `rows` mixtures of `terms` blocks each if slots share them: the same number for
/// every slot, provided the bits are the same for any groups. They are not if rows of summaries or
/// of key sums end in half a vector, where kernels sum pairs of rows differently from single rows.
/// Those of mixing in pairs are, of whole pairs.
template <class L>
MHLA_ONCE_A_CALL RowGroups shared_row_groups(const Extents& e, Index rows, Index terms, Into into,
                                             Index num_slots, bool in_pairs) {
  constexpr Index vector = 16;
  RowGroups groups = row_groups<L>(e, rows, terms);
  if (in_pairs && groups.unit % 2 != 0) groups = RowGroups(rows, groups.most, 2);
  const bool same_bits = in_pairs || e.feature_dim % vector == 0 ||
                         (terms <= max_placed_rows && into == Into::overwrite);
  if (same_bits)
    groups.count =
        (std::min)(ceil_div(rows, groups.unit), ceil_div(groups.count, num_slots) * num_slots);
  return groups;
}

/// How many units share the value columns of a head in a forward call of fewer heads than slots:
/// enough to give every slot one, or 1. Columns of v are independent (arXiv 2601.07832, eq. 3 to
/// 5), so no slot waits for another's summaries; each recomputes phi and the key sums. That is
/// faster if summaries are large compared with what is recomputed. Rows that end within a vector
/// might get different bits.
template <class L>
MHLA_ONCE_A_CALL Index value_parts(const Problem& problem, Index heads, Index num_slots) {
  constexpr Index vector = 16;
  constexpr Index fewest = 2 * vector;
  const Shape& shape = problem.shape;
  if (!is_arithmetic<typename L::FeatureMapType> || heads == 0 || num_slots % heads != 0) return 1;
  const Index parts = num_slots / heads;
  const bool large_summaries = shape.value_dim * problem.key_blocks >= 4 * shape.key_tokens;
  const bool whole_vectors =
      shape.value_dim % (parts * vector) == 0 && problem.feature_dim % vector == 0;
  return large_summaries && whole_vectors && shape.value_dim / parts >= fewest ? parts : 1;
}

}  // namespace cpu

MHLA_NAMESPACE_END
