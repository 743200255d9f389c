// SPDX-License-Identifier: MIT
// Scores of all pairs of a query tile and a range of keys, times the mixing weights of their blocks
// (arXiv 2601.07832, eq. 3 to 5, with the sums over a block's keys written out):
//
//   P_xy = <Q^r_x, K^r_y>    E_xy = <Q_x, K_y>    w_xy = m_ib of the blocks i of x and b of y
//   num_x = sum_y w_xy P_xy v_y                   den_x = sum_y w_xy E_xy + epsilon
//
// over the keys that x sees. Without a rotation E is P. The adjoint is in score_gradients.hpp.
#pragma once

#include <mhla/cpu/gemm.hpp>
#include <mhla/cpu/partition.hpp>

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
  Span<const BlockSpan> queries;
  Span<const BlockSpan> keys;
  Panel<const A> mixing;  // [query blocks, key blocks]

  /// How many keys the query at `token`, of block i, sees.
  Index seen(Index token, Index i) const {
    if (S == Sight::all) return tokens_of(keys);
    return S == Sight::past_tokens ? token + 1 : keys[i].first_token + keys[i].tokens;
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
  void for_each_block(const TokenTile& tile, const F& f) const {
    const Index end_of_tile = tile.offset + tile.tokens;
    Index i = block_of(tile.offset);
    for (Index first = tile.offset; first < end_of_tile; ++i) {
      const Index end = (std::min)(end_of_tile, queries[i].first_token + queries[i].tokens);
      if (first < end) f(i, first, end);
      first = (std::max)(first, end);
    }
  }

  /// w of query block i and the keys of a range that it sees: in the matrix, or in `buffer`, of
  /// written_weights more.
  const A* of(Index i, const KeyRange& range, A* buffer) const {
    const A* const row = mixing.row(i);
    if (range.single_tokens) return row + range.first_block;
    const Index end = S == Sight::all ? range.end_block : (std::min)(range.end_block, i + 1);
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

/// A unit's features of one kind, rotated or not. All but the first are of a backward pass, the
/// last three of one tile of queries.
template <class A>
struct FeatureMemory {
  Panel<A> transposed;    // [feature_dim, key tokens]: K^T
  Panel<A> keys;          // [key tokens, feature_dim]: K
  Panel<A> grad_keys;     // the same: dK
  Panel<A> queries;       // [tile tokens, feature_dim]: Q
  Panel<A> grad_queries;  // [ranges, tile tokens, feature_dim]: what each range adds to dQ
  Panel<A> scores;        // [tile tokens, key tokens]: Q K^T

  /// What range `index` has of them, with a tile of `rows` queries that see `seen` of its keys.
  FeatureMemory of(const KeyRange& range, Index index, Index rows, Index seen) const {
    if (keys.rows == 0) return {};
    return {transposed.col_range(range.first, seen),
            keys.row_range(range.first, range.tokens()),
            grad_keys.row_range(range.first, range.tokens()),
            queries.row_range(0, rows),
            grad_queries.row_range(index * queries.rows, rows),
            scores.row_range(0, rows).col_range(range.first, seen)};
  }
};

/// The memory of a unit in progress: its keys and values, and backward all gradients of a kv head
/// and one tile of queries with all keys.
template <class A>
struct Memory {
  Span<KeyRange> ranges;
  FeatureMemory<A> rotated;
  FeatureMemory<A> unrotated;  // no rows if the normalizer has no others
  Panel<A> values;             // [key tokens, value_dim]; backward the transpose
  // Backward only:
  Panel<A> grad_values;      // [key tokens, value_dim]
  Panel<A> products;         // [tile tokens, key tokens]: G
  Panel<A> grad_numerators;  // [tile tokens, value_dim]: U
  Span<A> grad_outputs;      // the same: dy
  Span<A> input;             // [tile tokens, key_dim]: of RowBuffers
  Span<A> gradient;          // the same
  Span<A> denominators;      // [tile tokens]; likewise:
  Span<A> inverses;
  Span<A> grad_denominators;
  Span<A> by_weight;  // [key tokens]: of dmix, before they are summed over a key block
  Panel<A> sums;      // [2, ranges, tile tokens]

  MHLA_ONCE_A_CALL void lay_out(Arena& arena, const Extents& e, bool unrotated_too,
                                bool is_backward) {
    const Index stride = key_stride(e.key_tokens);
    const Index max_count = max_ranges(e.key_tokens);
    const auto take = [&](Index rows, Index cols) {
      return panel(arena.take<A>(checked_mul(rows, cols)).data, rows, cols);
    };
    const auto take_features = [&](FeatureMemory<A>& of) {
      of.transposed = take(e.feature_dim, stride);
      if (!is_backward) return;
      of.keys = take(e.key_tokens, e.feature_dim);
      of.grad_keys = take(e.key_tokens, e.feature_dim);
      of.queries = take(e.tile_tokens, e.feature_dim);
      of.grad_queries = take(checked_mul(max_count, e.tile_tokens), e.feature_dim);
      of.scores = take(e.tile_tokens, stride);
    };
    ranges = arena.take<KeyRange>(max_count);
    take_features(rotated);
    if (unrotated_too) take_features(unrotated);
    values = is_backward ? take(e.value_dim, stride) : take(e.key_tokens, e.value_dim);
    if (!is_backward) return;
    grad_values = take(e.key_tokens, e.value_dim);
    products = take(e.tile_tokens, stride);
    grad_numerators = take(e.tile_tokens, e.value_dim);
    grad_outputs = arena.take<A>(checked_mul(e.tile_tokens, e.value_dim));
    input = arena.take<A>(checked_mul(e.tile_tokens, e.key_dim));
    gradient = arena.take<A>(input.size);
    for (Span<A>* const of : {&denominators, &inverses, &grad_denominators})
      *of = arena.take<A>(e.tile_tokens);
    by_weight = arena.take<A>(stride);
    sums = take(checked_mul(2, max_count), e.tile_tokens);
  }
};

/// A tile of queries with a range of keys: its scores are [rows, keys of the range].
template <class A, Sight S>
struct ScoreTile {
  const Weights<A, S>& weights;
  const TokenTile& tile;
  const KeyRange& range;

  /// How many keys the last row sees, and so any.
  Index seen() const {
    const Index last = tile.offset + tile.tokens - 1;
    return weights.seen(last, weights.block_of(last), range);
  }

  /// Calls f(row, keys, w) for every row, which sees the first `keys` keys, by the weights w, in
  /// the matrix or in `buffer`.
  template <class F>
  void for_each_row(Span<A> buffer, const F& f) const {
    weights.for_each_block(tile, [&](Index i, Index first, Index end) {
      const A* const w = weights.of(i, range, buffer.data);
      for (Index x = first; x < end; ++x) f(x - tile.offset, weights.seen(x, i, range), w);
    });
  }

  /// Under a causality, calls f(row, rows, key, keys, triangle) for the parts that see each other:
  /// all of one, or in a triangle only keys up to the row's own token. Nothing else is multiplied,
  /// so that a NaN in a key that a query does not see does not reach it, nor the other way round.
  template <class F>
  void for_each_part(const F& f) const {
    const auto part = [&](Index row, Index end_row, Index key, Index end_key,
                          bool triangle = false) {
      if (row < end_row && key < end_key) f(row, end_row - row, key, end_key - key, triangle);
    };
    if constexpr (S == Sight::past_tokens) {
      const Index own = std::clamp(tile.offset, range.first, range.end);
      const Index end = std::clamp(tile.offset + tile.tokens, range.first, range.end);
      part(0, tile.tokens, 0, own - range.first);
      part(own - tile.offset, end - tile.offset, own - range.first, end - range.first, true);
      part(end - tile.offset, tile.tokens, own - range.first, end - range.first);
    } else {
      // All rows see the keys that the first one sees; rows of later blocks see more.
      const Index by_all = weights.seen(tile.offset, weights.block_of(tile.offset), range);
      part(0, tile.tokens, 0, by_all);
      weights.for_each_block(tile, [&](Index i, Index first, Index end) {
        part(first - tile.offset, end - tile.offset, by_all, weights.seen(first, i, range));
      });
    }
  }

  /// result (+)= scores from, or scores^T from, over what is seen. Not transposed, `square` has
  /// room for a tile's triangle.
  //                                                        // [tile or range tokens, columns]
  template <bool Transposed>
  void multiply_seen(const Panel<A>& result, const Panel<A>& scores, const Panel<const A>& from,
                     Into into, Span<A> square = {}) const {
    const auto multiply_part = [](const Panel<A>& to, const Panel<A>& part,
                                  const Panel<const A>& factor, Into add) {
      if constexpr (Transposed) return multiply_left_transposed(to, part, factor, add);
      return multiply(to, part, factor, add);
    };
    if constexpr (S == Sight::all) {
      multiply_part(result, scores, from, into);
    } else {
      if (into == Into::overwrite) set_zero(result);
      for_each_part([&](Index row, Index rows, Index key, Index keys, bool triangle) {
        const Panel<A> seen = scores.row_range(row, rows).col_range(key, keys);
        const Panel<A> to = Transposed ? result.row_range(key, keys) : result.row_range(row, rows);
        const Panel<const A> factor =
            Transposed ? from.row_range(row, rows) : from.row_range(key, keys);
        if (!triangle) return multiply_part(to, seen, factor, Into::add);
        if constexpr (S == Sight::past_tokens && Transposed) {
          multiply_lower_transposed(to, seen, factor, Into::add);
        } else if constexpr (S == Sight::past_tokens) {
          const Panel<A> transposed = panel(square.data, keys, rows);
          transpose<A>(transposed, seen);
          multiply_lower(to, transposed, factor, Into::add);
        }
      });
    }
  }

  /// w o scores, in place; adds the sum of row x to sums_x.
  MHLA_OUT_OF_LINE void weigh(const Panel<A>& scores, Span<A> buffer, Span<A> sums) const {
    A (*weigh_row)(Index, const A*, A*) = nullptr;
    with_kernels<A>([&](auto kernels) { weigh_row = kernels.weigh; });
    for_each_row(buffer, [&](Index row, Index keys, const A* w) {
      const A sum = weigh_row(keys, w, scores.row(row));
      if (sums.size > 0) sums[row] += sum;
    });
  }
};

/// A unit's keys and values in a forward pass.
template <class A>
struct KeyPanels {
  Span<const KeyRange> ranges;
  Panel<const A> rotated;    // [feature_dim, key tokens]: K^r, transposed
  Panel<const A> unrotated;  // the same of K; no rows if the normalizer has no others
  Panel<const A> values;     // [key tokens, value_dim]
};

/// num and, before epsilon, den of a tile of queries: den has no elements without a normalizer.
template <class A, Sight S>
MHLA_ONCE_A_CALL void read_out_scores(const Weights<A, S>& weights, const TokenTile& tile,
                                      const KeyPanels<A>& keys, const Panel<const A>& features,
                                      const Panel<const A>& rotated, const Scratch<A>& scratch,
                                      const Panel<A>& numerators, Span<A> denominators) {
  if (keys.ranges.size == 0) set_zero(numerators);
  std::fill_n(denominators.data, denominators.size, A(0));
  const bool same = keys.unrotated.rows == 0;
  for (const KeyRange& range : keys.ranges) {
    const ScoreTile<A, S> at{weights, tile, range};
    const Index seen = at.seen();
    if (seen == 0) break;
    const auto scores_of = [&](const Panel<const A>& rows, const Panel<const A>& columns,
                               Span<A> memory) {
      const Panel<A> scores{memory.data, rows.rows, seen, key_stride(seen)};
      multiply(scores, rows, columns.col_range(range.first, seen));
      return scores;
    };
    if (!same)
      at.weigh(scores_of(features, keys.unrotated, scratch.unrotated), scratch.weights,
               denominators);
    const Panel<A> scores = scores_of(rotated, keys.rotated, scratch.scores);
    at.weigh(scores, scratch.weights, same ? denominators : Span<A>{});
    at.template multiply_seen<false>(numerators, scores, keys.values.row_range(range.first, seen),
                                     range.first == 0 ? Into::overwrite : Into::add,
                                     scratch.square);
  }
}

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
