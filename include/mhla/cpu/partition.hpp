// SPDX-License-Identifier: MIT
// How work is divided: rows and columns of the mixing matrix into groups, value columns of a head
// into parts.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cpu/extents.hpp>
#include <mhla/cpu/kernels.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/traits.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Rows of the mixing matrix handled at once: groups of nearly equal size, each of whole units.
struct RowGroups {
  Index rows = 0;
  Index most = 1;  // rows of a group
  Index unit = 1;
  Index count = 0;

  RowGroups(Index total, Index max_rows, Index unit_rows = 1)
      : rows(total),
        most((std::max)(max_rows / unit_rows, Index{1}) * unit_rows),
        unit(unit_rows),
        count(ceil_div(total, most)) {}
  RowGroups() = default;

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
template <class L>
MHLA_ONCE_A_CALL RowGroups shared_row_groups(const Extents& e, Index rows, Index terms, Into into,
                                             Index num_slots) {
  constexpr Index vector = 16;
  RowGroups groups = row_groups<L>(e, rows, terms);
  const bool same_bits =
      e.feature_dim % vector == 0 || (terms <= max_placed_rows && into == Into::overwrite);
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
