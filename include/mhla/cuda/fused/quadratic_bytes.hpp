// SPDX-License-Identifier: MIT
// Bytes that the kernels over pairs of tokens request, exact for calls without absent tokens: tiles
// of tokens and their table entries, mixing matrices, results. Most come from caches. All are
// linear in the tiles, entries and tokens that a kernel visits, so that ranges are counted, not
// tiles of pairs. Needs no CUDA header, so that a cost model can use it.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/fused/moved_bytes.hpp>
#include <mhla/cuda/fused/quadratic.hpp>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Entries [begin, end) of a block table.
struct Entries {
  Index begin = 0;
  Index end = 0;

  Index count() const { return std::max(Index{0}, end - begin); }
};

/// What a kernel visits: tiles, their entries, and entries with a token.
struct Walked {
  Index tiles = 0;
  Index entries = 0;
  Index tokens = 0;

  Walked& operator+=(const Walked& other) {
    tiles += other.tiles;
    entries += other.entries;
    tokens += other.tokens;
    return *this;
  }
  friend Walked operator*(Index times, const Walked& of) {
    return {times * of.tiles, times * of.entries, times * of.tokens};
  }
};

/// A block table on the host, whose blocks are looked up mostly in order.
class PairSide {
 public:
  struct OfBlock {
    Index before;          // tokens of the blocks before it
    Index sequence_begin;  // blocks
    Index sequence_end;
  };
  Index block_tokens = 0;  // entries of a block
  Index count = 0;         // of blocks
  Index all_tokens = 0;

  template <AttentionVariant V>
  PairSide(const V& attention, const Grid& grid)
      : block_tokens(block_tokens_of(grid)), block_step_(grid.block[2]) {
    cuda::for_each_sequence(attention, grid, [&](const Sequence& sequence) {
      count += sequence.blocks;
      all_tokens += sequence.length;
    });
    sequence_ = {0, all_tokens, 0, count};
    if constexpr (is_packed<V>) {
      attention_ = &attention;
      begin_ = [](const void* variant, Index s) {
        return static_cast<const V*>(variant)->begin(s);
      };
      if (count > 0) sequence_ = sequence_at(0, 0);
    }
  }

  Entries all() const { return {0, count * block_tokens}; }
  /// If b is count: the end of the last.
  OfBlock block(Index b) const {
    if (b == count) return {all_tokens, count, count};
    find_sequence_of(b);
    return {sequence_.begin + (b - sequence_.first_block) * block_step_, sequence_.first_block,
            sequence_.first_block + sequence_.blocks};
  }
  OfBlock block_of(Index entry) const { return block(entry / block_tokens); }
  Index tokens_of(Index b) const {
    find_sequence_of(b);
    return std::min(block_step_, sequence_.length - (b - sequence_.first_block) * block_step_);
  }
  /// Entries below `entry` that have a token.
  Index tokens_before(Index entry) const {
    const Index b = entry / block_tokens;
    if (b == count) return all_tokens;
    return block(b).before + std::min(tokens_of(b), entry % block_tokens);
  }
  Index tokens(const Entries& of) const {
    if (of.count() == 0) return 0;
    if (of.begin == 0 && of.end == count * block_tokens) return all_tokens;
    return tokens_before(of.end) - tokens_before(of.begin);
  }
  Walked walked(const Entries& of, Index rows) const {
    return {ceil_div(of.count(), rows), of.count(), tokens(of)};
  }
  /// Calls f(tile) for the tiles of some entries.
  template <class F>
  void for_each_tile(const Entries& of, Index rows, const F& f) const {
    for (Index begin = of.begin; begin < of.end; begin += rows)
      f(Entries{begin, std::min(begin + rows, of.end)});
  }

 private:
  // Searches forward or backward from the last sequence found.
  void find_sequence_of(Index b) const {
    while (b >= sequence_.first_block + sequence_.blocks)
      sequence_ = sequence_at(++number_, sequence_.first_block + sequence_.blocks);
    while (b < sequence_.first_block) {
      const Index end = sequence_.first_block;
      sequence_ = sequence_at(--number_, 0);
      sequence_.first_block = end - sequence_.blocks;
    }
  }
  Sequence sequence_at(Index number, Index first_block) const {
    const Index begin = begin_(attention_, number);
    const Index length = begin_(attention_, number + 1) - begin;
    return {begin, length, first_block, ceil_div(length, block_step_)};
  }

  Index block_step_;
  const void* attention_ = nullptr;  // of packed sequences
  Index (*begin_)(const void* attention, Index number) = nullptr;
  mutable Sequence sequence_{};
  mutable Index number_ = 0;  // of that sequence
};

/// A call over pairs.
struct PairBytes {
  bool packed;
  Sight sees;
  PairSide queries;
  PairSide keys;
  Index items;
  Index kv_heads;
  Index heads;     // of a kv head
  Index matrices;  // of a kv head
  Index mix_heads;
  Index mix_rows;
  Index mix_columns;
  Index key_dim;
  Index value_dim;
  bool divides;
  bool rotates;

  template <AttentionVariant V>
  PairBytes(const V& attention, const Problem& problem)
      : packed(is_packed<V>),
        sees(sight_of<V>),
        queries(attention, problem.query_grid),
        keys(attention, problem.key_grid),
        items(problem.shape.batch),
        kv_heads(problem.shape.kv_heads),
        heads(problem.shape.group_size()),
        matrices(problem.shape.mix_heads == 1 ? 1 : heads),
        mix_heads(problem.shape.mix_heads),
        mix_rows(problem.query_blocks),
        mix_columns(problem.key_blocks),
        key_dim(problem.shape.key_dim),
        value_dim(problem.shape.value_dim),
        divides(normalizes<V>),
        rotates(mhla::rotates<V>) {}

  /// What tiles of one side visit of the other, for one head.
  struct Walk {
    Walked seen;       // of the other side, by all tiles
    Walked seeing;     // tiles of this side that see any
    Index looked = 0;  // bytes, to find where sequences begin and end
  };
  Walk keys_seen() const {
    return walk(queries, keys, [&](const Entries& xs, Walk& to) {
      to.looked += look_for_keys(xs);
      return keys_seen(xs);
    });
  }
  Walk queries_that_see() const {
    return walk(keys, queries, [&](const Entries& ys, Walk& to) {
      to.looked += look_for_queries(ys);
      return queries_that_see(ys);
    });
  }
  /// What the parts of dmix visit, for one head: every tile of queries once for each tile of keys
  /// that it meets, and vice versa.
  struct MixWalk {
    Walked queries;
    Walked keys;
    Index looked = 0;  // bytes, for one matrix
  };
  MixWalk mixing_pairs() const {
    MixWalk walk;
    const Index parts = ceil_div(mix_rows, blocks_of_tile(queries));
    const Index visits = sees == Sight::all ? parts * ceil_div(mix_columns, blocks_of_tile(keys))
                                            : parts * (parts + 1) / 2;
    if (!packed) {
      add_mixing_pairs({0, queries.count}, {0, keys.count}, walk);
      return walk;
    }
    walk.looked = visits * threads * 8 * queries.count;
    for (Index first = 0; first < queries.count;) {
      const Index end = queries.block(first).sequence_end;
      const Index own_parts = ceil_div(end - first, blocks_of_tile(queries));
      const Index own_visits = sees == Sight::all
                                   ? own_parts * ceil_div(mix_columns, blocks_of_tile(keys))
                                   : own_parts * (own_parts + 1) / 2;
      walk.looked += own_visits * find_end(queries, first);
      add_mixing_pairs({first, end}, {first, end}, walk);
      first = end;
    }
    return walk;
  }

  /// o from q, k and v.
  MovedBytes attend() const { return attend(keys_seen()); }
  MovedBytes attend(const Walk& walk) const {
    const Walked own = all(queries);
    MovedBytes head;
    head.read = query_tiles(own, key_dim) + walk.looked + others(walk.seen) +
                features(walk.seeing) + weights_of_pairs();
    store(own, value_dim, Update::overwrite, head);
    return items * kv_heads * heads * head;
  }

  /// dq, r and c from q, k, v and dy.
  MovedBytes query_gradient(bool wants_query, Update update) const {
    return query_gradient(keys_seen(), wants_query, update);
  }
  MovedBytes query_gradient(const Walk& walk, bool wants_query, Update update) const {
    MovedBytes head;
    const Index passes = (divides ? 1 : 0) + (wants_query ? 1 : 0);
    if (passes == 0) return head;
    const Walked own = all(queries);
    head.read = query_tiles(own, value_dim) + walk.looked +
                passes * (others(walk.seen) + weights_of_pairs());
    if (divides) {
      // Scores, used only for denominators here.
      head.read += copy(own, key_dim) + features(walk.seeing);
      head.written += 8 * own.entries;
    }
    if (wants_query) {
      head.read += copy(own, key_dim) + features(own);
      store(own, key_dim, update, head);
    }
    return items * kv_heads * heads * head;
  }

  /// dk and dv from q, k, v, dy, r and c.
  MovedBytes key_gradient(bool wants_key, bool wants_value, Update update) const {
    return key_gradient(queries_that_see(), wants_key, wants_value, update);
  }
  MovedBytes key_gradient(const Walk& walk, bool wants_key, bool wants_value, Update update) const {
    MovedBytes head;
    if (!wants_key && !wants_value) return head;
    const Walked own = all(keys);
    head.read = walk.looked + copy(own, key_dim) + copy(own, value_dim) + look_up(own) +
                rotated_features(walk.seeing) +
                heads * (others(walk.seen) + (divides ? 8 * walk.seen.entries : 0) +
                         walk.seeing.tiles * kept_weights() + weights_of_pairs());
    if (wants_value) store(own, value_dim, update, head);
    if (wants_key) {
      head.read += copy(own, key_dim) + features(own);
      store(own, key_dim, update, head);
    }
    return items * kv_heads * head;
  }

  /// The parts of dmix from q, k, v, dy, r and c.
  MovedBytes mixing_gradient() const { return mixing_gradient(mixing_pairs()); }
  MovedBytes mixing_gradient(const MixWalk& walk) const {
    MovedBytes matrix;
    matrix.read = walk.looked + heads / matrices *
                                    (others(walk.queries) + others(walk.keys) +
                                     (divides ? 8 * walk.queries.entries : 0));
    matrix.written = 4 * mix_rows * mix_columns;
    if (sees != Sight::all) {
      matrix.written = 0;
      for (Index row = 0; row < mix_rows; ++row)
        matrix.written += 4 * std::min(row + 1, mix_columns);
    }
    return items * kv_heads * matrices * matrix;
  }

  Index rows() const { return pair_rows(key_dim, value_dim, is_twofold()); }
  bool is_twofold() const { return rotates && divides; }
  Walked all(const PairSide& side) const { return side.walked(side.all(), rows()); }
  /// The matrix, if a thread block keeps it.
  Index kept_weights() const {
    return keeps_mixing(mix_rows, mix_columns) ? 4 * mix_rows * mix_columns : 0;
  }

 private:
  static constexpr Index threads = 256;
  static constexpr Index place = 16;  // bytes of an entry of the table

  bool has_parts() const { return packed || sees != Sight::all; }

  /// Visits the tiles of one side; part_of(tile, walk) is what each sees of the other.
  template <class PartOf>
  Walk walk(const PairSide& own, const PairSide& other, const PartOf& part_of) const {
    Walk to;
    if (!has_parts()) {
      const Walked tiles = all(own);
      to.seen = tiles.tiles * all(other);
      if (other.count > 0) to.seeing = tiles;
      return to;
    }
    own.for_each_tile(own.all(), rows(), [&](const Entries& tile) {
      const Walked seen = other.walked(part_of(tile, to), rows());
      to.seen += seen;
      if (seen.entries > 0) to.seeing += own.walked(tile, rows());
    });
    return to;
  }

  Index copy(const Walked& of, Index dim) const {
    return of.entries * dim / 8 * place + of.tokens * dim * 2;
  }
  Index rotated_features(const Walked& of) const {
    return of.entries * lanes_of_row(key_dim) * place + (rotates ? of.tokens * key_dim * 4 : 0);
  }
  /// Those, and also unrotated ones if denominators need them.
  Index features(const Walked& of) const {
    return rotated_features(of) + (is_twofold() ? of.entries * lanes_of_row(key_dim) * place : 0);
  }
  static Index look_up(const Walked& of) { return of.entries * place + of.tokens * 8; }
  static void store(const Walked& of, Index dim, Update update, MovedBytes& to) {
    const Index bytes = of.tokens * dim * 2;
    to.read += of.entries * dim / 8 * place + (update == Update::accumulate ? bytes : 0);
    to.written += bytes;
  }
  /// Weights that are read pair by pair, for one head.
  Index weights_of_pairs() const {
    if (keeps_mixing(mix_rows, mix_columns)) return 0;
    if (!has_parts()) return 4 * queries.all_tokens * keys.all_tokens;
    Index pairs = 0;
    for (Index b = 0; b < queries.count; ++b) {
      const PairSide::OfBlock of = queries.block(b);
      const Index tokens = queries.tokens_of(b);
      const Index begin = queries.block(of.sequence_begin).before;
      if (sees == Sight::all) pairs += tokens * (queries.block(of.sequence_end).before - begin);
      if (sees == Sight::past_blocks) pairs += tokens * (of.before - begin + tokens);
      if (sees == Sight::past_tokens)
        pairs += tokens * (of.before - begin) + tokens * (tokens + 1) / 2;
    }
    return 4 * pairs;
  }

  /// What threads read to find where a sequence ends or begins.
  static Index find_end(const PairSide& side, Index b) {
    const Index end = side.block(b).sequence_end;
    return threads * 8 * (end - b - 1 + (end < side.count ? 1 : 0));
  }
  static constexpr Index find_begin = threads * 8;

  Entries keys_seen(const Entries& xs) const {
    Entries seen = keys.all();
    if (packed)
      seen = {queries.block_of(xs.begin).sequence_begin * keys.block_tokens,
              queries.block_of(xs.end - 1).sequence_end * keys.block_tokens};
    if (sees == Sight::past_blocks)
      seen.end = ((xs.end - 1) / queries.block_tokens + 1) * keys.block_tokens;
    if (sees == Sight::past_tokens) seen.end = xs.end;
    return seen;
  }
  Index look_for_keys(const Entries& xs) const {
    if (!packed) return 0;
    return find_begin +
           (sees == Sight::all ? find_end(queries, (xs.end - 1) / queries.block_tokens) : 0);
  }
  Entries queries_that_see(const Entries& ys) const {
    Entries seeing = queries.all();
    if (packed)
      seeing = {keys.block_of(ys.begin).sequence_begin * queries.block_tokens,
                keys.block_of(ys.end - 1).sequence_end * queries.block_tokens};
    if (sees == Sight::past_blocks)
      seeing.begin = ys.begin / keys.block_tokens * queries.block_tokens;
    if (sees == Sight::past_tokens) seeing.begin = ys.begin;
    return seeing;
  }
  Index look_for_queries(const Entries& ys) const {
    if (!packed) return 0;
    return (sees == Sight::all ? find_begin : 0) + find_end(keys, (ys.end - 1) / keys.block_tokens);
  }

  /// Tiles of queries and their data.
  Index query_tiles(const Walked& of, Index dim) const {
    return copy(of, dim) + look_up(of) + of.tiles * kept_weights();
  }
  /// Tiles that others loop over: features, and values or gradients of outputs.
  Index others(const Walked& of) const {
    return copy(of, key_dim) + copy(of, value_dim) + features(of) + look_up(of);
  }

  Index blocks_of_tile(const PairSide& side) const {
    return side.block_tokens < rows() ? rows() / side.block_tokens : 1;
  }
  /// Pairs of tiles of a sequence's blocks, by parts of the matrix.
  void add_mixing_pairs(const Entries& row_blocks, const Entries& column_blocks,
                        MixWalk& to) const {
    const auto meet = [&](const Walked& xs, const Walked& ys) {
      to.queries += ys.tiles * xs;
      to.keys += xs.tiles * ys;
    };
    if (sees == Sight::all) {
      meet(parts_of(queries, row_blocks), parts_of(keys, column_blocks));
      return;
    }
    Walked before;  // the keys of earlier parts
    const Index of = blocks_of_tile(queries);
    for (Index b = row_blocks.begin; b < row_blocks.end; b += of) {
      const Index end = std::min(b + of, row_blocks.end);
      const Entries part{b * queries.block_tokens, end * queries.block_tokens};
      const Walked xs = queries.walked(part, rows());
      meet(xs, before);
      before += xs;
      if (sees == Sight::past_blocks) {
        meet(xs, xs);
        continue;
      }
      Index number = 0;
      queries.for_each_tile(part, rows(), [&](const Entries& tile) {
        const Walked one = queries.walked(tile, rows());
        to.queries += (number + 1) * one;
        to.keys += (xs.tiles - number) * one;
        ++number;
      });
    }
  }
  /// The tiles of blocks, with as many blocks per tile as fit.
  Walked parts_of(const PairSide& side, const Entries& blocks) const {
    const Index of = blocks_of_tile(side);
    const auto tiles = [&](Index count) { return ceil_div(count * side.block_tokens, rows()); };
    Walked walked =
        side.walked({blocks.begin * side.block_tokens, blocks.end * side.block_tokens}, rows());
    walked.tiles = blocks.count() / of * tiles(of) + tiles(blocks.count() % of);
    return walked;
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
