// SPDX-License-Identifier: MIT
// What a call lays out before it runs: tables, the packed mixing matrix, scratch for every slot of
// the executor, and the division of the work. Everything lies in the caller's workspace.
//
// A unit of work is one kv head of one sequence, with the query heads that read it.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/block_mixing.hpp>
#include <mhla/cpu/block_summary.hpp>
#include <mhla/cpu/block_table.hpp>
#include <mhla/cpu/rotation_table.hpp>
#include <mhla/cpu/token_block.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/problem.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// What is left of a variant when geometry and rotation have become tables. The units are compiled
/// for this, so once for all geometries, rotations and executors.
template <class FeatureMapT, class CausalityT, class NormalizerT>
struct Lowered {
  FeatureMapT feature_map;
  NormalizerT normalizer;
  double scale;

  using FeatureMapType = FeatureMapT;
  using CausalityType = CausalityT;
  using NormalizerType = NormalizerT;
};

template <class V>
using LoweredOf =
    Lowered<typename V::FeatureMapType, typename V::CausalityType, typename V::NormalizerType>;

template <class L>
inline constexpr bool mixes_key_sums = std::is_same_v<typename L::NormalizerType, MixedKeySum>;
template <class L>
inline constexpr bool mixes_products = std::is_same_v<typename L::NormalizerType, MixedProduct>;
template <class L>
inline constexpr bool normalizes = mixes_key_sums<L> || mixes_products<L>;

/// Queries see their own block only up to themselves, so that it goes token by token.
template <class L>
inline constexpr bool masks_own_block = std::is_same_v<typename L::CausalityType, Causal>;
/// Query block i sees whole key blocks b <= i - lag.
template <class L>
inline constexpr bool sees_past_only = !std::is_same_v<typename L::CausalityType, Bidirectional>;
template <class L>
inline constexpr Index past_lag = masks_own_block<L> ? 1 : 0;
template <class L>
inline constexpr Index max_tokens_of_tile =
    masks_own_block<L> ? max_causal_tile_tokens : max_tile_tokens;

/// Rows of the mixing matrix handled at once: groups of nearly equal size, made of whole units.
struct RowGroups {
  Index rows = 0;
  Index most = 1;  // rows of a group
  Index unit = 1;
  Index count = 0;

  RowGroups(Index total, Index most_rows, Index unit_rows = 1)
      : rows(total),
        most(std::max(most_rows / unit_rows, Index{1}) * unit_rows),
        unit(unit_rows),
        count(ceil_div(total, most)) {}
  RowGroups() = default;

  Index begin(Index group) const {
    return std::min(rows, even_split(ceil_div(rows, unit), count, group) * unit);
  }
  Index size(Index group) const { return begin(group + 1) - begin(group); }
  /// Of any sequence of up to this many rows: a shorter one may be cut into larger groups.
  Index max_size() const { return std::min(rows, most); }
};

/// The sizes every stage works with.
struct Extents {
  Index query_blocks;
  Index key_blocks;
  Index feature_dim;
  Index value_dim;
  Index group_size;    // query heads per kv head
  Index matrices;      // mixing matrices per unit: 1 shared, or one per query head; 0 without any
  Index tile_tokens;   // of the longest tile
  Index block_tokens;  // of the longest query block
  Index query_tokens;

  Index summary_size() const { return checked_mul(feature_dim, value_dim); }
  /// From one summary to the next: an odd number of cache lines, so that the same element of many
  /// summaries does not fall on the same set of the cache.
  Index summary_stride() const {
    constexpr Index line = 16;
    return checked_mul(ceil_div(summary_size(), line) | 1, line);
  }

  explicit Extents(const Problem& problem, Index max_tokens = max_tile_tokens)
      : query_blocks(problem.query_blocks),
        key_blocks(problem.key_blocks),
        feature_dim(problem.feature_dim),
        value_dim(problem.shape.value_dim),
        group_size(problem.shape.group_size()),
        matrices(problem.shape.mix_heads == 1 ? std::min(Index{1}, group_size) : group_size),
        query_tokens(problem.shape.query_tokens) {
    block_tokens = block_size(problem.query_grid);
    const Index key_block_tokens = block_size(problem.key_grid);
    const Index longest = block_tokens > key_block_tokens ? block_tokens : key_block_tokens;
    tile_tokens = std::min(longest, max_tokens);
  }

 private:
  static Index block_size(const Grid& grid) {
    Index tokens = 1;
    for (int a = 0; a < 3; ++a)
      tokens *= grid.block[a] < grid.extent[a] ? grid.block[a] : grid.extent[a];
    return tokens;
  }
};

/// Floats of summaries that L2 keeps beside panels of tokens.
inline constexpr Index cached_summaries = Index{9} << 15;

/// The groups of `rows` mixtures of `terms` summaries each, `stride` apart. As many as one tile of
/// sums takes where the cache holds all terms: the mixed summaries are read out from near then.
/// More of them where terms come from far away for every group: as many as the cache has room for,
/// but some tiles at the least, and the more, the more terms there are.
inline RowGroups mixing_groups(Terms kind, Index rows, Index terms, Index stride) {
  constexpr Index least = 42;
  constexpr Index most = 112;
  const Index held = cached_summaries / stride;
  if (terms <= held)
    return kind == Terms::all ? RowGroups(rows, max_strip_rows)
                              : RowGroups(rows, triangle_rows, triangle_rows);
  return {rows, std::clamp(std::max(held, terms / 8), least, most),
          kind == Terms::all ? Index{1} : max_past_strip_rows};
}
template <class L>
RowGroups row_groups(const Extents& e, Index rows, Index terms) {
  return mixing_groups(sees_past_only<L> ? Terms::past : Terms::all, rows, terms,
                       e.summary_stride());
}

/// Columns of dM handled at once: of few blocks, so that there is something for every slot, of
/// many, so that each dS~_i is read for many of them.
inline Index matrix_gradient_cols(Index cols) { return cols < 128 ? 32 : 64; }

/// The groups of `rows` mixtures of `terms` blocks each where slots share them: as many for every
/// slot, if the bits are the same for any groups. They are not where rows of summaries or of key
/// sums end in half a vector, of which kernels add up pairs of rows, and other rows, in another
/// way.
template <class L>
RowGroups shared_row_groups(const Extents& e, Index rows, Index terms, Into into, Index slots) {
  constexpr Index vector = 16;
  RowGroups groups = row_groups<L>(e, rows, terms);
  const bool same_bits =
      e.feature_dim % vector == 0 || (terms <= max_placed_rows && into == Into::overwrite);
  if (same_bits)
    groups.count = std::min(ceil_div(rows, groups.unit), ceil_div(groups.count, slots) * slots);
  return groups;
}

/// How many units share the value columns of a head in a forward call of fewer heads than slots: as
/// many as give every slot one, or 1. Columns of v never meet (arXiv 2601.07832, eq. 3 to 5), so no
/// slot waits for summaries of another; each works out phi and the key sums for itself. That is the
/// faster way where summaries are large beside what has to be worked out again. Rows that end
/// within a vector might get other bits.
template <class L>
Index value_parts(const Problem& problem, Index heads, Index slots) {
  constexpr Index vector = 16;
  constexpr Index fewest = 2 * vector;
  const Shape& shape = problem.shape;
  if (!is_arithmetic<typename L::FeatureMapType> || heads == 0 || slots % heads != 0) return 1;
  const Index parts = slots / heads;
  const bool large_summaries = shape.value_dim * problem.key_blocks >= 4 * shape.key_tokens;
  const bool whole_vectors =
      shape.value_dim % (parts * vector) == 0 && problem.feature_dim % vector == 0;
  return large_summaries && whole_vectors && shape.value_dim / parts >= fewest ? parts : 1;
}

/// What a call needs memory for.
struct Needs {
  bool mixed_key_sums;
  bool mixed_products;
  bool own_tiles;  // of causal queries
  bool rotation;
  bool backward;

  bool normalizer() const { return mixed_key_sums || mixed_products; }
};

/// Panels of the keys of a causal query tile's own block.
template <class A>
struct OwnTileScratch {
  Span<A> features;        // [tile tokens, feature_dim]: phi(k)
  Span<A> rotated;         // the same, rotated; `features` itself where nothing rotates
  Span<A> values;          // [tile tokens, value_dim]: v
  Span<A> key_sums;        // [tile tokens, feature_dim]: p_t
  Span<A> scores;          // [tile tokens, tile tokens]
  Span<A> grad_rotated;    // [tile tokens, feature_dim]: dK^r / m_ii
  Span<A> grad_key_sums;   // [tile tokens, feature_dim]: dK / m_ii
  Span<A> grad_values;     // [tile tokens, value_dim]: dV / m_ii
  Span<A> grad_summaries;  // [matrices, value_dim, feature_dim]: dP^T
  Span<A> grad_running;    // [matrices, feature_dim]: w

  OwnTileScratch() = default;
  OwnTileScratch(Arena& arena, const Extents& e, const Needs& needs) {
    if (!needs.own_tiles) return;
    const Index features_size = checked_mul(e.tile_tokens, e.feature_dim);
    const Index values_size = checked_mul(e.tile_tokens, e.value_dim);
    features = arena.take<A>(features_size);
    rotated = needs.rotation ? arena.take<A>(features_size) : features;
    values = arena.take<A>(values_size);
    key_sums = arena.take<A>(needs.normalizer() ? features_size : 0);
    scores = arena.take<A>(checked_mul(e.tile_tokens, e.tile_tokens));
    if (!needs.backward) return;
    grad_rotated = arena.take<A>(features_size);
    grad_key_sums = arena.take<A>(needs.normalizer() ? features_size : 0);
    grad_values = arena.take<A>(values_size);
    grad_summaries = arena.take<A>(checked_mul(e.matrices, e.summary_size()));
    grad_running = arena.take<A>(needs.normalizer() ? checked_mul(e.matrices, e.feature_dim) : 0);
  }
};

/// Panels of one tile and one group of rows; one for every slot.
template <class A>
struct SlotScratch {
  Span<A> features;           // [tile tokens, feature_dim]: phi
  Span<A> rotated;            // the same, rotated; `features` itself where nothing rotates
  Span<A> grad_features;      // [tile tokens, feature_dim]: of the rotated features
  Span<A> grad_unrotated;     // [tile tokens, feature_dim]: of the normalizer's
  Span<A> values;             // [tile tokens, value_dim]: v, or numerators and y, or dy and U
  Span<A> grad_values;        // [tile tokens, value_dim]
  Span<A> denominators;       // [tile tokens]
  Span<A> inverses;           // [tile tokens]: 1 / den
  Span<A> grad_denominators;  // [tile tokens]
  Span<A> mixed_summaries;    // [group rows, feature_dim * value_dim]: S~, or dS in the adjoint
  Span<A> mixed_key_sums;     // [group rows, feature_dim]: z~, or dz
  Span<A> weights;            // [group rows, blocks]: of the mixing matrix; or a triangle of dM
  Span<A> transposed;         // [feature_dim, value_dim]: dS of one block
  RowBuffers<A> row;
  OwnTileScratch<A> own;

  SlotScratch() = default;
  SlotScratch(Arena& arena, const Extents& e, Index key_dim, Index group_rows, const Needs& needs)
      : own(arena, e, needs) {
    features = arena.take<A>(checked_mul(e.tile_tokens, e.feature_dim));
    rotated = needs.rotation ? arena.take<A>(features.size) : features;
    grad_features = arena.take<A>(needs.backward ? features.size : 0);
    values = arena.take<A>(checked_mul(e.tile_tokens, e.value_dim));
    grad_unrotated =
        arena.take<A>(needs.normalizer() && needs.backward && needs.own_tiles ? features.size : 0);
    grad_values = arena.take<A>(needs.backward ? values.size : 0);
    denominators = arena.take<A>(needs.normalizer() ? e.tile_tokens : 0);
    inverses = arena.take<A>(denominators.size);
    grad_denominators = arena.take<A>(needs.normalizer() && needs.backward ? e.tile_tokens : 0);
    mixed_summaries = arena.take<A>(checked_mul(group_rows, e.summary_stride()));
    mixed_key_sums = arena.take<A>(needs.normalizer() ? checked_mul(group_rows, e.feature_dim) : 0);
    const Index columns = std::min(e.key_blocks, matrix_gradient_cols(e.key_blocks));
    weights =
        arena.take<A>(std::max(checked_mul(group_rows, std::max(e.query_blocks, e.key_blocks)),
                               needs.backward ? columns * columns : Index{0}));
    transposed = arena.take<A>(needs.backward ? e.summary_size() : 0);
    row.input = arena.take<A>(checked_mul(e.tile_tokens, key_dim));
    row.gradient = arena.take<A>(needs.backward ? row.input.size : 0);
  }
};

/// Summaries and key sums of consecutive blocks, one block per row: S and z of key blocks, S~ and
/// z~ of a group of query blocks, and their gradients.
template <class A>
struct SummaryRows {
  Panel<A> summaries;     // [rows, feature_dim * value_dim]
  Panel<A> key_sums;      // [rows, feature_dim]; no columns where the normalizer needs none
  Index first = 0;        // the block of row 0
  Index matrix_rows = 0;  // of one summary
  Index matrix_cols = 0;

  SummaryRows() = default;
  SummaryRows(A* summary_data, A* key_sum_data, const Extents& e, Orientation orientation,
              Index first_block, Index rows, bool with_key_sums)
      : summaries{summary_data, rows, e.summary_size(), e.summary_stride()},
        key_sums(panel(key_sum_data, rows, with_key_sums ? e.feature_dim : 0)),
        first(first_block),
        matrix_rows(orientation == Orientation::straight ? e.feature_dim : e.value_dim),
        matrix_cols(orientation == Orientation::straight ? e.value_dim : e.feature_dim) {}

  /// Elements that `blocks` rows take.
  static Index size(const Extents& e, Index blocks, bool with_key_sums) {
    return checked_mul(blocks, checked_add(e.summary_stride(), with_key_sums ? e.feature_dim : 0));
  }
  Panel<A> summary(Index block) const {
    return panel(summaries.row(block - first), matrix_rows, matrix_cols);
  }
  Span<A> key_sum(Index block) const { return {key_sums.row(block - first), key_sums.cols}; }
};

/// Memory of one unit at work.
template <class A>
struct UnitMemory {
  Span<A> summaries;             // [key blocks] of SummaryRows: S, then z
  Span<A> grad_mixed_summaries;  // [matrices, query blocks, feature_dim * value_dim]: dS~
  Span<A> grad_mixed_key_sums;   // [matrices, query blocks, feature_dim]: dz~
  // What one pass over the queries leaves for the next, under MixedProduct and under Causal:
  Span<A> denominators;       // [group_size, blocks, block tokens]; MixedProduct's dR later on
  Span<A> grad_denominators;  // [group_size, blocks, block tokens]: C
  // MixedProduct alone:
  Span<A> products;       // [group_size, blocks, block tokens]: R
  Span<A> grad_features;  // [group_size, query tokens, feature_dim]: dQ^r, until dR is known
  Span<A> grad_key_sums;  // [key blocks, feature_dim]: dz

  UnitMemory() = default;
  UnitMemory(Arena& arena, const Extents& e, const Needs& needs) {
    const Index offsets = checked_mul(e.group_size, checked_mul(e.query_blocks, e.block_tokens));
    summaries = arena.take<A>(SummaryRows<A>::size(e, e.key_blocks, needs.normalizer()));
    if (needs.backward) {
      const Index rows = checked_mul(e.matrices, e.query_blocks);
      grad_mixed_summaries = arena.take<A>(checked_mul(rows, e.summary_stride()));
      grad_mixed_key_sums =
          arena.take<A>(needs.mixed_key_sums ? checked_mul(rows, e.feature_dim) : 0);
    }
    if (needs.mixed_products || (needs.own_tiles && needs.normalizer() && needs.backward))
      denominators = arena.take<A>(offsets);
    if (denominators.size > 0 && needs.backward) grad_denominators = arena.take<A>(offsets);
    if (needs.mixed_products) {
      products = arena.take<A>(offsets);
      if (needs.backward) {
        grad_features =
            arena.take<A>(checked_mul(checked_mul(e.group_size, e.query_tokens), e.feature_dim));
        grad_key_sums = arena.take<A>(checked_mul(e.key_blocks, e.feature_dim));
      }
    }
  }
};

/// Everything a call knows before it runs. Constructed on a measuring arena it only says how much
/// workspace the call takes.
template <class L, class A>
struct Plan {
  Problem problem;
  Extents extents;
  BlockTables tables;
  RotationTable<A> rotation;
  Span<A> mixing;  // [mix_heads, query blocks, key blocks]: the leading corner, packed
  Span<SlotScratch<A>> slots;
  Span<UnitMemory<A>> units;
  // There are enough units for every slot to run one of its own. Else, and of the rest that does
  // not go round, all slots share one unit after the other.
  bool whole_units;

  /// `concurrent` is the number of tasks that could run at once without sharing a unit.
  template <class V>
  Plan(Arena& arena, const V& attention, const Problem& checked, const ExecutorRef& executor,
       Index concurrent, bool backward)
      : problem(checked),
        extents(checked, max_tokens_of_tile<L>),
        tables(block_tables(arena, attention, checked, max_tokens_of_tile<L>)),
        rotation(rotation_table<A>(arena, attention.rotation, V::GeometryType::rank,
                                   checked.feature_dim, checked.query_grid, checked.key_grid,
                                   executor)) {
    const Shape& shape = problem.shape;
    mixing = arena.take<A>(
        checked_mul(shape.mix_heads, checked_mul(problem.query_blocks, problem.key_blocks)));

    const Needs needs{mixes_key_sums<L>, mixes_products<L>, masks_own_block<L>, rotation.rotates(),
                      backward};
    const Index num_slots = executor.slots();
    whole_units = concurrent >= num_slots;
    Index group_rows = row_groups<L>(extents, problem.query_blocks, problem.key_blocks).max_size();
    if (backward)
      group_rows = std::max(
          group_rows, row_groups<L>(extents, problem.key_blocks, problem.query_blocks).max_size());
    slots = arena.take<SlotScratch<A>>(num_slots);
    for (Index s = 0; s < num_slots; ++s) {
      const SlotScratch<A> slot(arena, extents, shape.key_dim, group_rows, needs);
      if (!arena.measures()) slots[s] = slot;
    }
    units = arena.take<UnitMemory<A>>(whole_units ? num_slots : 1);
    for (Index u = 0; u < units.size; ++u) {
      const UnitMemory<A> unit(arena, extents, needs);
      if (!arena.measures()) units[u] = unit;
    }
  }

  /// The corner of a query head's mixing matrix that a sequence uses. // [query blocks, key blocks]
  Panel<const A> mixing_of(Index head, Index query_blocks, Index key_blocks) const {
    const Index matrix = problem.shape.mix_heads == 1 ? 0 : head;
    return {mixing.data + matrix * problem.query_blocks * problem.key_blocks, query_blocks,
            key_blocks, problem.key_blocks};
  }

  /// The query heads of a unit that a matrix of it mixes for: [first, last).
  struct Heads {
    Index first;
    Index last;
  };
  Heads heads_of(Index matrix) const {
    return extents.matrices == 1 ? Heads{0, extents.group_size} : Heads{matrix, matrix + 1};
  }

  /// Copies the leading corner of `mix`, whatever its strides.
  void pack_mixing(const TensorView<const A, 3>& mix) {
    for (Index h = 0; h < problem.shape.mix_heads; ++h)
      for (Index i = 0; i < problem.query_blocks; ++i)
        for (Index b = 0; b < problem.key_blocks; ++b)
          mixing[(h * problem.query_blocks + i) * problem.key_blocks + b] = mix(h, i, b);
  }
};

/// Runs its tasks in order on the slot it was made for: how a unit loops when it has one slot.
struct OneSlot {
  Index slot;

  static constexpr Index slots() { return 1; }
  template <class Task>
  void parallel_for(Index tasks, Task&& f) const {
    for (Index task = 0; task < tasks; ++task) f(task, slot);
  }
};

}  // namespace cpu

MHLA_NAMESPACE_END
