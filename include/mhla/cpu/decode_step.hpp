// SPDX-License-Identifier: MIT
// Causal attention token by token: the next tile of a sequence from the state that earlier tokens
// left (arXiv 2601.07832, section 4.2; deferred form). Token t lies in block i, the open one. Its
// keys and values, and those of block i - 1, the closing one, are still kept as such; all earlier
// blocks are summaries, already mixed for row i:
//
//   num = Q^r P_i + m_i,i-1 (Q^r K^r_i-1^T) V_i-1 + m_ii tril(Q^r K^r_i^T) V_i
//   den = Q (z~_i + m_ii sum of the open block's K up to the query) + epsilon
//   P_i = sum_{b<i-1} m_ib S_b         z~_i = sum_{b<i} m_ib z_b
//
// Meanwhile each token of the open block does its share of the work for the next block, so that all
// steps cost the same. Of n tokens each finishes about e / n of the e columns of
//
//   S_i-1 = K^r_i-1^T V_i-1            P_i+1 = sum_{b<i} m_i+1,b S_b
//
// or, by a recurrence, whose states take the place of the closed blocks' summaries,
//
//   H_i = g_i H_i-1 + b_i S_i-1        P_i+1 = sum_r a_i+1,r g_i+1,r H_i^r
//
// and m_i,i-1 = sum_r a_ir b_ir.
//
// Summaries are kept transposed, [value_dim, feature_dim], so that such columns are rows.
#pragma once

#include <mhla/cpu/token_block.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Maximum tokens that one step processes together.
inline constexpr Index max_decode_tile = 64;

/// The sizes of a decoder's state.
struct DecodeExtents {
  Index blocks;        // that a sequence can have
  Index block_tokens;  // n
  Index feature_dim;   // D
  Index value_dim;     // e
  Index matrices;      // mixing matrices per kv head
  bool normalized;
  Index states = 0;     // R of a recurrence, which has no `blocks`
  bool rounds = false;  // whether tiles of many tokens read in pairs (pairs/decode_step.hpp)

  Index summary_size() const { return checked_mul(feature_dim, value_dim); }
};

/// The state of one kv head of one sequence. Where there are two copies, even and odd blocks
/// alternate.
template <class A>
struct DecodeUnit {
  Span<A> summaries;      // [blocks, value_dim, feature_dim]: S_b^T of closed blocks
  Span<A> key_sums;       // [blocks, feature_dim]: z_b of closed blocks, and of the open one so far
  Span<A> states;         // [matrices, states, value_dim, feature_dim]: H^T, instead of summaries
  Span<A> state_sums;     // [matrices, states, feature_dim]: of key sums, of which only one is kept
  Span<A> keys[2];        // [block tokens, feature_dim]: phi(k), rotated
  Span<A> values[2];      // [block tokens, value_dim]
  Span<A> mixed[2];       // [matrices, value_dim, feature_dim]: P_i^T
  Span<A> mixed_sums[2];  // [matrices, feature_dim]: z~_i

  DecodeUnit() = default;
  DecodeUnit(Arena& arena, const DecodeExtents& e) {
    const Index sums = e.normalized ? e.feature_dim : 0;
    summaries = arena.take<A>(checked_mul(e.blocks, e.summary_size()));
    key_sums = arena.take<A>(checked_mul(e.states > 0 ? Index{1} : e.blocks, sums));
    const Index all_states = checked_mul(e.matrices, e.states);
    states = arena.take<A>(checked_mul(all_states, e.summary_size()));
    state_sums = arena.take<A>(checked_mul(all_states, sums));
    for (int parity = 0; parity < 2; ++parity) {
      keys[parity] = arena.take<A>(checked_mul(e.block_tokens, e.feature_dim));
      values[parity] = arena.take<A>(checked_mul(e.block_tokens, e.value_dim));
      mixed[parity] = arena.take<A>(checked_mul(e.matrices, e.summary_size()));
      mixed_sums[parity] = arena.take<A>(checked_mul(e.matrices, sums));
    }
  }

  /// z of the open block.
  Span<A> open_key_sum(const DecodeExtents& e, Index block) const {
    return {key_sums.data + (e.states > 0 ? 0 : block * e.feature_dim), e.feature_dim};
  }
  /// P_i^T, and z~_i.
  A* mixed_summary(const DecodeExtents& e, int parity, Index matrix) const {
    return mixed[parity].data + matrix * e.summary_size();
  }
  A* mixed_sum(const DecodeExtents& e, int parity, Index matrix) const {
    return mixed_sums[parity].data + matrix * e.feature_dim;
  }
  /// Some tokens of a block.
  Panel<A> key_rows(const DecodeExtents& e, int parity, Index first, Index count) const {
    return panel(keys[parity].data + first * e.feature_dim, count, e.feature_dim);
  }
  Panel<A> value_rows(const DecodeExtents& e, int parity, Index first, Index count) const {
    return panel(values[parity].data + first * e.value_dim, count, e.value_dim);
  }
  /// Columns [first, ...) of a state.
  A* state(const DecodeExtents& e, Index matrix, Index r, Index first) const {
    return states.data + ((matrix * e.states + r) * e.value_dim + first) * e.feature_dim;
  }
  A* state_sum(const DecodeExtents& e, Index matrix, Index r) const {
    return state_sums.data + (matrix * e.states + r) * e.feature_dim;
  }
};

/// Panels of one tile; one for every slot.
template <class A>
struct DecodeSlot {
  Span<A> queries;       // [tile, feature_dim]
  Span<A> rotated;       // [tile, feature_dim]
  Span<A> keys;          // [tile, feature_dim]
  Span<A> key_sums;      // [tile, feature_dim]
  Span<A> running;       // [feature_dim]
  Span<A> scores;        // [tile, block tokens]
  Span<A> numerators;    // [tile, value_dim]
  Span<A> denominators;  // [tile]
  Span<A> summary;       // [value_dim, feature_dim], of a recurrence
  Span<Index> places;    // [tile]
  RowBuffers<A> row;

  DecodeSlot(Arena& arena, const DecodeExtents& e, Index key_dim, bool recurrent) {
    const Index tile = (std::min)(e.block_tokens, max_decode_tile);
    queries = arena.take<A>(checked_mul(tile, e.feature_dim));
    rotated = arena.take<A>(checked_mul(tile, e.feature_dim));
    keys = arena.take<A>(checked_mul(tile, e.feature_dim));
    key_sums = arena.take<A>(checked_mul(tile, e.feature_dim));
    running = arena.take<A>(e.feature_dim);
    scores = arena.take<A>(checked_mul(tile, e.block_tokens));
    numerators = arena.take<A>(checked_mul(tile, e.value_dim));
    denominators = arena.take<A>(tile);
    summary = arena.take<A>(recurrent ? e.summary_size() : 0);
    row.input = arena.take<A>(checked_mul(tile, key_dim));
    places = arena.take<Index>(tile);
  }
};

/// What the scores of the tokens that are kept as such are multiplied by.
template <class A>
struct DecodeWeights {
  A closing;  // m_i,i-1
  A open;     // m_ii
};

/// Tokens [first, first + tokens) of block `block`, the open one.
struct DecodeTile {
  Index block;
  Index first;
  Index tokens;

  int open_turn() const { return static_cast<int>(block % 2); }
  int closing() const { return 1 - open_turn(); }
};

/// Columns that are the share of the work for the next blocks of tokens [begin, end) of a block.
struct DecodeShare {
  Index first;
  Index count;

  DecodeShare(const DecodeExtents& e, Index begin, Index end)
      : first(even_split(e.value_dim, e.block_tokens, begin)),
        count(even_split(e.value_dim, e.block_tokens, end) - first) {}
  DecodeShare(const DecodeExtents& e, const DecodeTile& tile)
      : DecodeShare(e, tile.first, tile.first + tile.tokens) {}
};

/// Restores a unit to its state before a call, if some task of the call throws. A repeated call
/// overwrites most of what was done. But the open block's key sum and a recurrence's states
/// accumulate, and tokens of the next two blocks share memory with the open and the closing block.
template <class A>
class DecodeUndo {
 public:
  DecodeUndo(Arena& arena, DecodeExtents e)
      : key_sum_(arena.take<A>(e.normalized ? e.feature_dim : 0)) {
    e.blocks = 0;
    kept_ = DecodeUnit<A>(arena, e);
  }

  /// A call begins; the unit's task has not.
  void forget() { begun_ = false; }
  /// The task begins, at token `first` of block `block`.
  void begin(const DecodeUnit<A>& unit, Index block, Index first) {
    block_ = block;
    first_ = first;
    reached_[0] = reached_[1] = 0;
    copy_row(key_sum_.data, unit.key_sums.data + key_sum_at(block), key_sum_.size);
    copy_row(kept_.state_sums.data, unit.state_sums.data, unit.state_sums.size);
    updates_end_ = 0;
    begun_ = true;
  }
  /// Called before the task writes a tile, for each tile in turn.
  void keep(const DecodeExtents& e, const DecodeUnit<A>& unit, const DecodeTile& tile) {
    const Index ahead = tile.block - block_;
    if (e.states > 0) keep_states(e, unit, tile);
    if (ahead < 1 || ahead > 2) return;
    const Index of_first = block_ == 0 ? 0 : e.block_tokens;
    const Index end = (std::min)(tile.first + tile.tokens, ahead == 1 ? of_first : first_);
    if (end <= tile.first) return;
    copy_turns(e, unit, kept_, tile.open_turn(), tile.first, end);
    reached_[ahead - 1] = end;
  }
  void restore(const DecodeExtents& e, const DecodeUnit<A>& unit) const {
    if (!begun_) return;
    copy_row(unit.key_sums.data + key_sum_at(block_), key_sum_.data, key_sum_.size);
    copy_row(unit.state_sums.data, kept_.state_sums.data, unit.state_sums.size);
    restore_states(e, unit);
    for (int ahead = 1; ahead <= 2; ++ahead)
      copy_turns(e, kept_, unit, static_cast<int>((block_ + ahead) % 2), 0, reached_[ahead - 1]);
  }

 private:
  Index key_sum_at(Index block) const { return kept_.states.size > 0 ? 0 : block * key_sum_.size; }
  // Tokens count from the beginning of block_: those that update a column for the first time are
  // [updates_begin(), updates_begin() + n), as block 0 updates none.
  Index updates_begin(const DecodeExtents& e) const {
    return block_ == 0 ? e.block_tokens : first_;
  }
  void keep_states(const DecodeExtents& e, const DecodeUnit<A>& unit, const DecodeTile& tile) {
    const Index begin = (tile.block - block_) * e.block_tokens + tile.first;
    const Index end = (std::min)(begin + tile.tokens, updates_begin(e) + e.block_tokens);
    if (begin < updates_begin(e) || end <= begin) return;
    copy_states(e, unit, kept_, tile.first, tile.first + end - begin);
    updates_end_ = end;
  }
  void restore_states(const DecodeExtents& e, const DecodeUnit<A>& unit) const {
    const Index n = e.block_tokens;
    if (updates_end_ == 0) return;
    copy_states(e, kept_, unit, (std::min)(updates_begin(e), n), (std::min)(updates_end_, n));
    copy_states(e, kept_, unit, 0, (std::max)(Index{0}, updates_end_ - n));
  }
  static void copy_states(const DecodeExtents& e, const DecodeUnit<A>& from,
                          const DecodeUnit<A>& to, Index begin, Index end) {
    const DecodeShare share(e, begin, end);
    for (Index matrix = 0; matrix < e.matrices; ++matrix)
      for (Index r = 0; r < e.states; ++r)
        copy_row(to.state(e, matrix, r, share.first), from.state(e, matrix, r, share.first),
                 share.count * e.feature_dim);
  }
  // All that tokens [begin, end) of a block write where even and odd blocks alternate.
  static void copy_turns(const DecodeExtents& e, const DecodeUnit<A>& from, const DecodeUnit<A>& to,
                         int open, Index begin, Index end) {
    const auto copy = [&](const Panel<A>& source, const Panel<A>& target) {
      copy_row(target.data, source.data, source.rows * source.cols);
    };
    const int closing = 1 - open;
    const Index count = end - begin;
    copy(from.key_rows(e, open, begin, count), to.key_rows(e, open, begin, count));
    copy(from.value_rows(e, open, begin, count), to.value_rows(e, open, begin, count));
    const DecodeShare share(e, begin, end);
    for (Index matrix = 0; matrix < e.matrices; ++matrix)
      copy_row(to.mixed_summary(e, closing, matrix) + share.first * e.feature_dim,
               from.mixed_summary(e, closing, matrix) + share.first * e.feature_dim,
               share.count * e.feature_dim);
    if (end == e.block_tokens)
      copy_row(to.mixed_sums[closing].data, from.mixed_sums[closing].data,
               from.mixed_sums[closing].size);
  }

  Span<A> key_sum_;
  DecodeUnit<A> kept_;
  Index block_ = 0;
  Index first_ = 0;
  Index reached_[2] = {};  // tokens of each of the two blocks
  Index updates_end_ = 0;  // of the states
  bool begun_ = false;
};

/// num of a tile's queries, [tile tokens, value_dim]; `scores` is scratch
/// [tile tokens, block tokens].
template <class A>
void read_out_decode_tile(const DecodeExtents& e, const DecodeUnit<A>& unit, const DecodeTile& tile,
                          Index matrix, const DecodeWeights<A>& weights,
                          const Panel<const A>& rotated_queries, const Panel<A>& scores,
                          const Panel<A>& numerators) {
  const Index depth = tile.block >= 2 ? e.feature_dim : 0;  // P_0 and P_1 are empty sums
  multiply_right_transposed<A>(
      numerators, rotated_queries.col_range(0, depth),
      {unit.mixed_summary(e, tile.open_turn(), matrix), e.value_dim, depth, e.feature_dim});
  const auto add = [&](int parity, Index count, A weight) {
    const Panel<A> part{scores.data, tile.tokens, count, scores.stride};
    multiply_right_transposed<A>(part, rotated_queries, unit.key_rows(e, parity, 0, count));
    scale_rows(part, weight);
    multiply<A>(numerators, part, unit.value_rows(e, parity, 0, count), Into::add);
  };
  const int open = tile.open_turn();
  if (tile.block >= 1) add(tile.closing(), e.block_tokens, weights.closing);
  add(open, tile.first, weights.open);
  const Panel<A> own_transposed{scores.data, tile.tokens, tile.tokens, scores.stride};
  multiply_right_transposed<A>(own_transposed, unit.key_rows(e, open, tile.first, tile.tokens),
                               rotated_queries);
  scale_rows(own_transposed, weights.open);
  multiply_lower<A>(numerators, own_transposed, unit.value_rows(e, open, tile.first, tile.tokens),
                    Into::add);
}

/// The share's columns of S_i-1, [count, feature_dim].
template <class A>
void summarize_share(const DecodeExtents& e, const DecodeUnit<A>& unit, const DecodeTile& tile,
                     const DecodeShare& share, A* summary) {
  const int closing = tile.closing();
  multiply_left_transposed<A>(
      panel(summary, share.count, e.feature_dim),
      unit.value_rows(e, closing, 0, e.block_tokens).col_range(share.first, share.count),
      unit.key_rows(e, closing, 0, e.block_tokens));
}

/// The tile's share of the work for the next blocks: of the columns of S_i-1, and of row i + 1 of
/// each mixing matrix applied to it. `row(matrix)` is that row, or null if there is none.
template <class A, class Row>
void prepare_next_block(const DecodeExtents& e, const DecodeUnit<A>& unit, const DecodeTile& tile,
                        const Row& row) {
  const DecodeShare share(e, tile);
  const Index width = share.count * e.feature_dim;
  if (tile.block == 0 || width == 0) return;

  A* const columns = unit.summaries.data + share.first * e.feature_dim;
  summarize_share(e, unit, tile, share, columns + (tile.block - 1) * e.summary_size());
  const Panel<const A> summaries{columns, tile.block, width, e.summary_size()};
  for (Index matrix = 0; matrix < e.matrices; ++matrix) {
    const A* next = row(matrix);
    if (next == nullptr) continue;
    A* const mixed = unit.mixed_summary(e, tile.closing(), matrix) + share.first * e.feature_dim;
    multiply<A>(panel(mixed, 1, width), panel(next, 1, tile.block), summaries);
  }
}

/// z~_i+1 of each mixing matrix, when block i is closed.
template <class A, class Row>
void mix_next_key_sums(const DecodeExtents& e, const DecodeUnit<A>& unit, Index block,
                       const Row& row) {
  const int next_parity = static_cast<int>((block + 1) % 2);
  for (Index matrix = 0; matrix < e.matrices; ++matrix) {
    const A* next = row(matrix);
    if (next == nullptr) continue;
    multiply<A>(panel(unit.mixed_sum(e, next_parity, matrix), 1, e.feature_dim),
                panel(next, 1, block + 1), panel(unit.key_sums.data, block + 1, e.feature_dim));
  }
}

/// state = decay state + write sum, of row i; the first row begins anew.
template <class A>
void advance_state(A* state, Index row, A decay, A write, const A* sum, Index count) {
  if (row == 1) std::fill_n(state, count, A(0));
  scale_rows(panel(state, 1, count), row == 1 ? A(1) : decay);
  add_scaled_row(state, write, sum, count);
}

/// prepare_next_block by a recurrence: the share's columns of H_i and of P_i+1.
/// `row(matrix, block)` is a RecurrentRow, or has no data; `summary` is scratch
/// [value_dim, feature_dim].
template <class A, class Row>
void advance_states(const DecodeExtents& e, const DecodeUnit<A>& unit, const DecodeTile& tile,
                    const Row& row, A* summary) {
  const DecodeShare share(e, tile);
  const Index width = share.count * e.feature_dim;
  if (tile.block == 0 || width == 0) return;
  summarize_share(e, unit, tile, share, summary);
  for (Index matrix = 0; matrix < e.matrices; ++matrix) {
    const RecurrentRow<A> now = row(matrix, tile.block);
    const RecurrentRow<A> next = row(matrix, tile.block + 1);
    A* const mixed = unit.mixed_summary(e, tile.closing(), matrix) + share.first * e.feature_dim;
    std::fill_n(mixed, width, A(0));
    for (Index r = 0; r < e.states; ++r) {
      A* const state = unit.state(e, matrix, r, share.first);
      advance_state(state, tile.block, now.decay(r), now.write_weight(r), summary, width);
      if (next.row != nullptr)
        add_scaled_row<A>(mixed, next.read_weight(r) * next.decay(r), state, width);
    }
  }
}

/// The recurrence of key sums, when block i is closed: H_i+1 and z~_i+1.
template <class A, class Row>
void advance_key_sums(const DecodeExtents& e, const DecodeUnit<A>& unit, Index block,
                      const Row& row) {
  const int next_parity = static_cast<int>((block + 1) % 2);
  for (Index matrix = 0; matrix < e.matrices; ++matrix) {
    const RecurrentRow<A> next = row(matrix, block + 1);
    if (next.row == nullptr) continue;
    A* const mixed = unit.mixed_sum(e, next_parity, matrix);
    std::fill_n(mixed, e.feature_dim, A(0));
    for (Index r = 0; r < e.states; ++r) {
      A* const state = unit.state_sum(e, matrix, r);
      advance_state(state, block + 1, next.decay(r), next.write_weight(r),
                    unit.open_key_sum(e, block).data, e.feature_dim);
      add_scaled_row<A>(mixed, next.read_weight(r), state, e.feature_dim);
    }
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
