// SPDX-License-Identifier: MIT
// Scores of all pairs of a query tile and a range of keys, times the mixing weights of their blocks
// (arXiv 2601.07832, eq. 3 to 5, with the sums over a block's keys written out):
//
//   P_xy = <Q^r_x, K^r_y>    E_xy = <Q_x, K_y>    w_xy = m_ib of the blocks i of x and b of y
//   num_x = sum_y w_xy P_xy v_y                   den_x = sum_y w_xy E_xy + epsilon
//
// over the keys that x sees. Without a rotation E is P. The adjoint is in score_gradients.hpp.
#pragma once

#include <algorithm>
#include <cstring>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/block_table.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/cpu/partition.hpp>
#include <mhla/policy/causality.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::quadratic {

/// Keys that are scored together: whole blocks, so that one task writes an element of dmix; as many
/// tokens, or more, as keep a tile's scores in L2. The last range may have fewer.
inline constexpr Index range_tokens = 256;

/// Tokens [first, end) of a sequence: blocks [first_block, end_block).
struct KeyRange {
  Index first_block;
  Index end_block;
  Index first;
  Index end;
  bool single_tokens;  // every block has one

  Index tokens() const { return end - first; }
};

/// Tokens [first, end) of a sequence's queries.
struct QueryRange {
  Index first;
  Index end;
};

/// Of all blocks of a sequence.
inline Index tokens_of(Span<const BlockSpan> blocks) {
  if (blocks.size == 0) return 0;
  const BlockSpan& last = blocks[blocks.size - 1];
  return last.first_token + last.tokens;
}

/// Weights that are written at once.
inline constexpr Index written_weights = 4;

/// Which keys the queries of a unit's sequence see, and by which weights.
template <class A, Sight S>
struct Weights {
  static constexpr Sight sight = S;

  Span<const BlockSpan> queries;
  Span<const BlockSpan> keys;
  Panel<const A> mixing;  // [query blocks, key blocks]

  /// How many keys the query at `token`, of block i, sees.
  Index seen(Index token, Index i) const {
    if (sight == Sight::all) return tokens_of(keys);
    return sight == Sight::past_tokens ? token + 1 : keys[i].first_token + keys[i].tokens;
  }
  /// How many of a range.
  Index seen(Index token, Index i, const KeyRange& range) const {
    return std::clamp(seen(token, i) - range.first, Index{0}, range.tokens());
  }
  /// The last block that begins at or before a query.
  Index block_of(Index query) const {
    Index first = 0;
    for (Index count = queries.size; count > 1; count -= count / 2)
      if (queries[first + count / 2].first_token <= query) first += count / 2;
    return first;
  }

  /// Calls f(i, first, end) for the tokens [first, end) of a tile in each query block i.
  template <class F>
  void for_each_block(const QueryRange& tile, const F& f) const {
    Index i = block_of(tile.first);
    for (Index first = tile.first; first < tile.end; ++i) {
      const Index end = (std::min)(tile.end, queries[i].first_token + queries[i].tokens);
      if (first < end) f(i, first, end);
      first = (std::max)(first, end);
    }
  }

  /// w of query block i and the keys of a range that it sees: in the matrix, or in `buffer`, of
  /// written_weights more.
  const A* of(Index i, const KeyRange& range, A* buffer) const {
    const A* const row = mixing.row(i);
    if (range.single_tokens) return row + range.first_block;
    const Index end = sight == Sight::all ? range.end_block : (std::min)(range.end_block, i + 1);
    for (Index b = range.first_block; b < end; ++b) {
      // In fours, of which the next block overwrites what is too many: blocks are short here.
      const A four[] = {row[b], row[b], row[b], row[b]};
      A* const to = buffer + keys[b].first_token - range.first;
      for (Index t = 0; t < keys[b].tokens; t += written_weights)
        std::memcpy(to + t, four, sizeof(four));
    }
    return buffer;
  }
};

/// Cuts the key blocks of a sequence; returns the number of ranges.
inline Index cut_keys(Span<const BlockSpan> keys, Span<KeyRange> ranges) {
  Index count = 0;
  KeyRange range{0, 0, 0, 0, true};
  for (Index b = 0; b < keys.size; ++b) {
    range.end_block = b + 1;
    range.end = keys[b].first_token + keys[b].tokens;
    range.single_tokens = range.single_tokens && keys[b].tokens == 1;
    if (range.tokens() < range_tokens && b + 1 < keys.size) continue;
    if (range.tokens() > 0) ranges[count++] = range;
    range = {b + 1, b + 1, range.end, range.end, true};
  }
  return count;
}
/// At most so many of `tokens` tokens, and tokens of one if no block is longer than `longest`.
inline Index max_ranges(Index tokens) { return tokens / range_tokens + 1; }
inline Index max_tokens_of_range(Index tokens, Index longest) {
  return (std::min)(tokens, range_tokens - 1 + longest);
}

/// Elements from row to row of [rows, key tokens]: an odd number of cache lines, so that the same
/// key of many rows does not map to the same cache set.
inline Index key_stride(Index key_tokens) {
  constexpr Index line = 16;
  return checked_mul(ceil_div(key_tokens, line) | 1, line);
}

/// Memory for one tile and one range, of every executor slot.
template <class A>
struct Scratch {
  Span<A> scores;     // [tile tokens, range tokens]
  Span<A> unrotated;  // the same of unrotated features, if the normalizer has others
  Span<A> weights;    // [range tokens and some]
  Span<A> square;     // [tile tokens, tile tokens]: of a triangle

  MHLA_ONCE_A_CALL void lay_out(Arena& arena, const Extents& e, bool unrotated_too) {
    const Index range = key_stride(max_tokens_of_range(e.key_tokens, e.key_block_tokens));
    scores = arena.take<A>(checked_mul(e.tile_tokens, range));
    unrotated = arena.take<A>(unrotated_too ? scores.size : 0);
    weights = arena.take<A>(range + written_weights);
    square = arena.take<A>(checked_mul(e.tile_tokens, e.tile_tokens));
  }
};

/// Rows of a tile and keys of a range that see each other: all of them, or in a triangle only keys
/// up to the row's own token.
struct SeenPart {
  Index row;
  Index rows;
  Index key;
  Index keys;
  bool triangle;
};

/// Under a causality, calls f(part) for the parts of a range that the rows of a tile see. Nothing
/// else is multiplied, so that a NaN in a key that a query does not see does not reach it, nor the
/// other way round.
template <class A, Sight S, class F>
void for_each_seen_part(const Weights<A, S>& weights, const QueryRange& tile, const KeyRange& range,
                        const F& f) {
  const auto part = [&](Index row, Index end_row, Index key, Index end_key, bool triangle = false) {
    if (row < end_row && key < end_key)
      f(SeenPart{row, end_row - row, key, end_key - key, triangle});
  };
  const Index rows = tile.end - tile.first;
  if constexpr (S == Sight::past_tokens) {
    const Index own = std::clamp(tile.first, range.first, range.end);
    const Index end = std::clamp(tile.end, range.first, range.end);
    part(0, rows, 0, own - range.first);
    part(own - tile.first, end - tile.first, own - range.first, end - range.first, true);
    part(end - tile.first, rows, own - range.first, end - range.first);
  } else {
    const Index by_all =
        weights.seen(tile.first, weights.block_of(tile.first), range);  // and later rows see more
    part(0, rows, 0, by_all);
    weights.for_each_block(tile, [&](Index i, Index first, Index end) {
      part(first - tile.first, end - tile.first, by_all, weights.seen(first, i, range));
    });
  }
}

template <class A>
Panel<A> part_of(const Panel<A>& scores, const SeenPart& part) {
  return scores.row_range(part.row, part.rows).col_range(part.key, part.keys);
}

/// rows (+)= scores keys over what is seen; `square` has room for a tile's triangle.
//                                                                              // [rows, columns]
template <class A, Sight S>
void multiply_keys(const Weights<A, S>& weights, const QueryRange& tile, const KeyRange& range,
                   const Panel<A>& scores, const Panel<const A>& keys, const Panel<A>& rows,
                   Into into, Span<A> square) {
  if constexpr (S == Sight::all) {
    multiply(rows, scores, keys, into);
  } else {
    if (into == Into::overwrite) set_zero(rows);
    for_each_seen_part(weights, tile, range, [&](const SeenPart& part) {
      const Panel<A> to = rows.row_range(part.row, part.rows);
      const Panel<const A> from = keys.row_range(part.key, part.keys);
      if (!part.triangle) return multiply(to, part_of(scores, part), from, Into::add);
      if constexpr (S == Sight::past_tokens) {
        const Panel<A> transposed = panel(square.data, part.keys, part.rows);
        transpose<A>(transposed, part_of(scores, part));
        multiply_lower(to, transposed, from, Into::add);
      }
    });
  }
}

/// keys (+)= scores^T rows over what is seen.                            // [range tokens, columns]
template <class A, Sight S>
void multiply_rows(const Weights<A, S>& weights, const QueryRange& tile, const KeyRange& range,
                   const Panel<A>& scores, const Panel<const A>& rows, const Panel<A>& keys,
                   Into into) {
  if constexpr (S == Sight::all) {
    multiply_left_transposed(keys, scores, rows, into);
  } else {
    if (into == Into::overwrite) set_zero(keys);
    for_each_seen_part(weights, tile, range, [&](const SeenPart& part) {
      const Panel<A> to = keys.row_range(part.key, part.keys);
      const Panel<const A> from = rows.row_range(part.row, part.rows);
      if (!part.triangle)
        return multiply_left_transposed(to, part_of(scores, part), from, Into::add);
      if constexpr (S == Sight::past_tokens)
        multiply_lower_transposed(to, part_of(scores, part), from, Into::add);
    });
  }
}

/// w o scores, in place; adds the sum of row x to sums_x.
template <class A, Sight S>
MHLA_OUT_OF_LINE void weigh(const Weights<A, S>& weights, const QueryRange& tile,
                            const KeyRange& range, const Panel<A>& scores, Span<A> buffer,
                            Span<A> sums) {
  A (*weigh_row)(Index, const A*, A*) = nullptr;
  with_kernels<A>([&](auto kernels) { weigh_row = kernels.weigh; });
  weights.for_each_block(tile, [&](Index i, Index first, Index end) {
    if (weights.seen(end - 1, i, range) == 0) return;
    const A* const w = weights.of(i, range, buffer.data);
    for (Index x = first; x < end; ++x) {
      const Index row = x - tile.first;
      const A sum = weigh_row(weights.seen(x, i, range), w, scores.row(row));
      if (sums.size > 0) sums[row] += sum;
    }
  });
}

/// A unit's keys and values.
template <class A>
struct KeyPanels {
  Span<const KeyRange> ranges;
  Panel<const A> transposed;            // [feature_dim, key tokens]: K^r
  Panel<const A> unrotated_transposed;  // the same of K; no rows if the normalizer has no others
  Panel<const A> values;                // [key tokens, value_dim]; backward transposed
};

/// num and, before epsilon, den of a tile of queries: den has no elements without a normalizer.
template <class A, Sight S>
MHLA_ONCE_A_CALL void read_out_scores(const Weights<A, S>& weights, const QueryRange& tile,
                                      const KeyPanels<A>& keys, const Panel<const A>& features,
                                      const Panel<const A>& rotated, const Scratch<A>& scratch,
                                      const Panel<A>& numerators, Span<A> denominators) {
  if (keys.ranges.size == 0) set_zero(numerators);
  std::fill_n(denominators.data, denominators.size, A(0));
  const bool same = keys.unrotated_transposed.rows == 0;
  const Index last = weights.block_of(tile.end - 1);
  for (const KeyRange& range : keys.ranges) {
    const Index seen = weights.seen(tile.end - 1, last, range);
    if (seen == 0) break;
    const auto scores_of = [&](const Panel<const A>& rows, const Panel<const A>& columns,
                               Span<A> memory) {
      const Panel<A> scores{memory.data, rows.rows, seen, key_stride(seen)};
      multiply(scores, rows, columns.col_range(range.first, seen));
      return scores;
    };
    if (!same)
      weigh(weights, tile, range, scores_of(features, keys.unrotated_transposed, scratch.unrotated),
            scratch.weights, denominators);
    const Panel<A> scores = scores_of(rotated, keys.transposed, scratch.scores);
    weigh(weights, tile, range, scores, scratch.weights, same ? denominators : Span<A>{});
    multiply_keys<A>(weights, tile, range, scores, keys.values.row_range(range.first, seen),
                     numerators, range.first == 0 ? Into::overwrite : Into::add, scratch.square);
  }
}

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
