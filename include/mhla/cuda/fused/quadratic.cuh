// SPDX-License-Identifier: MIT
// Attention as pairs of tokens, without summaries: for short sequences, whose tokens are fewer than
// a summary's elements. A thread block has a tile of queries of one head, from any blocks, and
// loops over the tiles of keys that they see:
//
//   W_ts = m_ib phi^r(q_t).phi^r(k_s)    den_t = sum_s m_ib phi(q_t).phi(k_s) + epsilon
//   o_t = sum_s W_ts v_s / den_t, 0 where den_t is 0
//
// i and b the blocks of t and s; with a rotation of the numerators' features, denominators have
// their own scores. Scores have 16 bits only between the two products; denominators stay in float.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/own_tokens.cuh>
#include <mhla/cuda/fused/product.cuh>
#include <mhla/cuda/fused/quadratic.hpp>
#include <mhla/cuda/fused/tile.cuh>
#include <mhla/cuda/fused/tile_ring.cuh>
#include <mhla/cuda/fused/token_pairs.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Operands of every pair kernel. Scores are `q.scale` phi(q).phi(k).
template <class T, class Map, bool Rotates>
struct PairOperands {
  FeatureTokens<T, Map, Rotates> q;
  FeatureTokens<T, Map, Rotates> k;
  Tokens<const T> v;
  MixingWeights mixing;
  Sharing sharing;
  bool packed;  // the table has blocks of several sequences, which do not see each other

  MHLA_HOST_DEVICE Index heads() const { return sharing.kv_heads * sharing.heads; }
  MHLA_HOST_DEVICE Index query_entries() const { return q.x.table.blocks * q.x.table.block_tokens; }
  MHLA_HOST_DEVICE Index key_entries() const { return k.x.table.blocks * k.x.table.block_tokens; }

  /// A thread block's tile of queries of one head, or of keys of one kv head.
  template <int Rows>
  MHLA_DEVICE TokenRange query_tile(Index number) const {
    return tile<Rows>(number, heads(), query_entries());
  }
  template <int Rows>
  MHLA_DEVICE TokenRange key_tile(Index number) const {
    return tile<Rows>(number, sharing.kv_heads, key_entries());
  }

 private:
  template <int Rows>
  MHLA_DEVICE static TokenRange tile(Index number, Index heads, Index entries) {
    const Index tiles = ceil_div(entries, Index{Rows});
    const Index begin = number / heads % tiles * Rows;
    return {number / heads / tiles, number % heads, begin,
            begin + Rows < entries ? begin + Rows : entries};
  }
};

/// The block and sequence of a tile's row.
struct alignas(8) RowBlock {
  std::int32_t mix_index;  // row or column of mix
  std::int32_t sequence;   // the first block of it
};
/// The sequence of rows without a token, different for each.
inline constexpr std::int32_t absent_query = -1;
inline constexpr std::int32_t absent_key = -2;

/// The same for all rows of a tile, in shared memory.
template <int Rows>
struct RowBlocks {
  static constexpr int bytes = Rows * 8;
  Shared begin;

  MHLA_DEVICE RowBlock operator[](int r) const {
    return machine::read<RowBlock>(begin + static_cast<Shared>(r * 8));
  }
  MHLA_DEVICE void look_up(const Block& block, const BlockTable& table, const TokenRange& range,
                           std::int32_t absent) const {
    const int r = block.thread;
    if (r >= Rows) return;
    RowBlock of{0, absent};
    if (place_of(table, range, r).token >= 0) {
      const Index b = (range.begin + r) / table.block_tokens;
      const Index mix_index = machine::load_from(table.mix_rows.data + b);
      of = {static_cast<std::int32_t>(mix_index), static_cast<std::int32_t>(b - mix_index)};
    }
    machine::write(begin + static_cast<Shared>(r * 8), of);
  }
};

template <Sight sees>
MHLA_DEVICE bool sees_pair(const RowBlock& query, const RowBlock& key, int query_row, int key_row,
                           int ahead) {
  bool seen = query.sequence == key.sequence;
  if constexpr (sees == Sight::past_tokens) seen = seen && key_row <= query_row + ahead;
  if constexpr (sees == Sight::past_blocks) seen = seen && key.mix_index <= query.mix_index;
  return seen;
}
/// By how many entries a tile of queries is ahead of one of keys, clamped to what matters.
template <int Rows>
MHLA_DEVICE int entries_ahead(Index query_begin, Index key_begin) {
  const Index ahead = query_begin - key_begin;
  return static_cast<int>(ahead < -Rows ? -Rows : ahead > Rows ? Rows : ahead);
}

/// The matrix of one head: in shared memory if it is small, else in global memory.
struct MixingOfHead {
  const float* matrix;
  Index columns;
  bool is_kept;
  Shared kept;

  MHLA_DEVICE float at(const RowBlock& query, const RowBlock& key) const {
    const Index at = query.mix_index * columns + key.mix_index;
    return is_kept ? machine::read<float>(kept + static_cast<Shared>(at * 4))
                   : machine::load_from(matrix + at);
  }
};
/// Synchronizes the thread block before and after.
template <int Threads>
MHLA_DEVICE MixingOfHead mixing_of_head(const Block& block, const MixingWeights& mixing, Index head,
                                        Shared kept) {
  const Index size = mixing.rows * mixing.columns;
  const float* const matrix = mixing.data + (mixing.heads == 1 ? 0 : head) * size;
  const bool is_kept = keeps_mixing(mixing.rows, mixing.columns);
  if (is_kept)
    for (int i = block.thread; i < static_cast<int>(size); i += Threads)
      machine::write<float>(kept + static_cast<Shared>(i * 4), machine::load_from(matrix + i));
  return {matrix, mixing.columns, is_kept, kept};
}

/// The pairs of a tile whose scores a thread holds, with their weights in mix. Rows are queries or,
/// with `Transposed`, keys.
template <Sight sees, int Rows, bool Transposed>
struct PairsOfThread {
  using Part = Scores<Rows>;
  static_assert(Part::row_parts == 1);
  static constexpr int cols = 2 * Part::col_parts;
  float weight[2][std::size_t{cols}];
  std::uint32_t seen = 0;  // one bit each

  MHLA_DEVICE static int row_of(const Block& block, int half) {
    return Part::row_part(block, 0) * 16 + block.lane() / 4 + half * 8;
  }
  MHLA_DEVICE static int col_of(const Block& block, int n) {
    return Part::col_part(block, n / 2) * 8 + block.lane() % 4 * 2 + n % 2;
  }

  MHLA_DEVICE void look_up(const Block& block, const MixingOfHead& mixing,
                           const RowBlocks<Rows>& queries, const RowBlocks<Rows>& keys, int ahead) {
    const RowBlocks<Rows>& rows = Transposed ? keys : queries;
    const RowBlocks<Rows>& columns = Transposed ? queries : keys;
    RowBlock of_row[2];
    MHLA_DEVICE_UNROLL
    for (int half = 0; half < 2; ++half) of_row[half] = rows[row_of(block, half)];
    MHLA_DEVICE_UNROLL
    for (int n = 0; n < cols; ++n) {
      const int col = col_of(block, n);
      const RowBlock of_col = columns[col];
      MHLA_DEVICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = row_of(block, half);
        const RowBlock& query = Transposed ? of_col : of_row[half];
        const RowBlock& key = Transposed ? of_row[half] : of_col;
        const bool counts =
            sees_pair<sees>(query, key, Transposed ? col : row, Transposed ? row : col, ahead);
        weight[half][n] = counts ? mixing.at(query, key) : 0.0f;
        if (counts) seen |= 1u << (half * cols + n);
      }
    }
  }
  MHLA_DEVICE bool counts(int half, int n) const { return (seen >> (half * cols + n) & 1u) != 0; }

  /// Calls f(half, n) for adjacent pairs n and n + 1 of a row.
  template <class F>
  MHLA_DEVICE static void for_each(const F& f) {
    MHLA_DEVICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      MHLA_DEVICE_UNROLL
      for (int n = 0; n < cols; n += 2) f(half, n);
    }
  }
  /// Adds the weighted scores of visible pairs to sums of this thread's rows.
  MHLA_DEVICE void add_row_sums(Part& scores, float (&sum)[2]) const {
    for_each([&](int half, int n) {
      for (int e = n; e < n + 2; ++e)
        if (counts(half, e)) sum[half] += weight[half][e] * of(scores, half, e);
    });
  }
  MHLA_DEVICE static float& of(Part& scores, int half, int n) {
    return scores.value[0][n / 2][2 * half + n % 2];
  }
};

/// Stores threads' row sums over their columns: sums[part][row], for each part of the columns. The
/// warp meets.
template <int Rows>
MHLA_DEVICE void write_row_sums(const Block& block, const float (&sum)[2], Shared sums) {
  using S = Scores<Rows>;
  MHLA_DEVICE_UNROLL
  for (int half = 0; half < 2; ++half) {
    float all = sum[half];
    all += machine::exchange(all, 1);
    all += machine::exchange(all, 2);
    const int row = S::row_part(block, 0) * 16 + block.lane() / 4 + half * 8;
    const int part = S::col_part(block, 0) / S::col_parts;
    if (block.lane() % 4 == 0)
      machine::write<float>(sums + static_cast<Shared>((part * Rows + row) * 4), all);
  }
}
template <int Rows>
inline constexpr int parts_of_row = 8 / (Rows / 16);
template <int Rows>
MHLA_DEVICE float row_sum(Shared sums, int row) {
  float sum = 0;
  for (int part = 0; part < parts_of_row<Rows>; ++part)
    sum += machine::read<float>(sums + static_cast<Shared>((part * Rows + row) * 4));
  return sum;
}

/// Entries [begin, end) of a table.
struct EntryRange {
  Index begin;
  Index end;

  template <int Rows>
  MHLA_DEVICE int tiles() const {
    return begin < end ? static_cast<int>(ceil_div(end - begin, Index{Rows})) : 0;
  }
};

/// The first block after the sequence of `b`.
MHLA_DEVICE Index end_of_sequence(const BlockTable& table, Index b) {
  Index end = b + 1;
  while (end < table.blocks && machine::load_from(table.mix_rows.data + end) != 0) ++end;
  return end;
}
MHLA_DEVICE Index begin_of_sequence(const BlockTable& table, Index b) {
  return b - machine::load_from(table.mix_rows.data + b);
}

/// The keys that some of the queries [begin, end) see.
template <Sight sees>
MHLA_DEVICE EntryRange keys_seen(const BlockTable& queries, const BlockTable& keys, bool packed,
                                 Index begin, Index end) {
  EntryRange range{0, keys.blocks * keys.block_tokens};
  const Index last = (end - 1) / queries.block_tokens;
  if (packed) {
    range.begin = begin_of_sequence(queries, begin / queries.block_tokens) * keys.block_tokens;
    if constexpr (sees == Sight::all)
      range.end = end_of_sequence(queries, last) * keys.block_tokens;
  }
  // Both sides share a table.
  if constexpr (sees == Sight::past_blocks) range.end = (last + 1) * keys.block_tokens;
  if constexpr (sees == Sight::past_tokens) range.end = end;
  return range;
}
/// The queries that see some of the keys [begin, end).
template <Sight sees>
MHLA_DEVICE EntryRange queries_that_see(const BlockTable& queries, const BlockTable& keys,
                                        bool packed, Index begin, Index end) {
  EntryRange range{0, queries.blocks * queries.block_tokens};
  const Index first = begin / keys.block_tokens;
  if (packed) {
    range.end = end_of_sequence(keys, (end - 1) / keys.block_tokens) * queries.block_tokens;
    if constexpr (sees == Sight::all)
      range.begin = begin_of_sequence(keys, first) * queries.block_tokens;
  }
  if constexpr (sees == Sight::past_blocks) range.begin = first * queries.block_tokens;
  if constexpr (sees == Sight::past_tokens) range.begin = begin;
  return range;
}
/// Whether a tile of queries may not see all of a tile of keys.
template <Sight sees, int Rows>
MHLA_DEVICE bool hides_some(bool packed, const BlockTable& table, Index query_begin,
                            Index key_begin) {
  bool hides = packed;
  if constexpr (sees == Sight::past_tokens) hides = hides || key_begin + Rows > query_begin + 1;
  if constexpr (sees == Sight::past_blocks)
    hides = hides || (key_begin + Rows - 1) / table.block_tokens > query_begin / table.block_tokens;
  return hides;
}

/// Writes unrotated features of a tile of tokens to a second tile, before the tile's own are
/// computed. Rows without a token are zero there, and stay so.
template <int Threads, class T, class Map, bool Rotates, int Rows, int Dim>
MHLA_DEVICE void make_plain_features(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                                     const TokenRange& range, const Tile<Rows, Dim>& tile,
                                     const Tile<Rows, Dim>& plain) {
  Quads<Dim>::template for_each_row<Threads, Rows>(
      block, of.x.table, range, [&](int row, const Place& place) {
        const bool present = place.token >= 0;
        Quads<Dim>::for_each(block, [&](int n, int) {
          float quad[4];
          read_quad<T>(tile, row, n, quad);
          for (float& x : quad) x = present ? of.scale * of.map.value(x) : 0.0f;
          write_quad<T>(plain, row, n, quad);
        });
      });
}

/// Common to all pair kernels: sizes, and the start of their shared memory.
template <int KeyDim, int ValueDim, bool Rotates, bool Divides, Sight sees>
struct PairShapes {
  /// A rotation applies to the numerators' features, not to the denominators'.
  static constexpr bool is_twofold = Rotates && Divides;
  static_assert(!is_twofold || sees != Sight::past_tokens,
                "mhla: Causal with MixedKeySum and a rotation has no fused kernels");
  static constexpr int threads = 256;
  static constexpr int warps = threads / 32;
  static constexpr int rows = pair_rows(KeyDim, ValueDim, is_twofold);
  using FeatureTile = Tile<rows, KeyDim>;
  using ValueTile = Tile<rows, ValueDim>;
  using ScoreTile = Tile<rows, rows>;
  /// Of a tile of unrotated features, if there are any.
  static constexpr int plain_bytes = is_twofold ? FeatureTile::bytes : 0;
  static constexpr int warps_m = rows / 16;
  static constexpr int warps_n = warps / warps_m;
  using ValueSum = Accumulators<rows, ValueDim, warps_m, warps_n>;
  using FeatureSum = Accumulators<rows, KeyDim, warps_m, warps_n>;

  // The block of each row, on either side; two sums or weights per row; whether a warp found an
  // infinity, in either tile; the mixing matrix.
  static constexpr int query_blocks_at = 0;
  static constexpr int key_blocks_at = query_blocks_at + RowBlocks<rows>::bytes;
  static constexpr int sums_bytes = parts_of_row<rows> * rows * 4;
  static constexpr int sums_at = key_blocks_at + RowBlocks<rows>::bytes;
  static constexpr int flags_at = sums_at + 2 * sums_bytes;
  static constexpr int mixing_at = flags_at + 2 * warps * 4;
  static constexpr int tiles_at = mixing_at + max_kept_weights * 4;
  static_assert(tiles_at % 16 == 0);

  MHLA_DEVICE static RowBlocks<rows> query_blocks() { return {Shared{query_blocks_at}}; }
  MHLA_DEVICE static RowBlocks<rows> key_blocks() { return {Shared{key_blocks_at}}; }
  MHLA_DEVICE static Shared sums(int which) {
    return static_cast<Shared>(sums_at + which * sums_bytes);
  }
  MHLA_DEVICE static Shared flags(int which) {
    return static_cast<Shared>(flags_at + which * warps * 4);
  }
};

template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sight sees, bool Divides>
struct AttendPairs {
  using Shapes = PairShapes<KeyDim, ValueDim, Rotates, Divides, sees>;
  static constexpr bool is_twofold = Shapes::is_twofold;
  using FeatureTile = typename Shapes::FeatureTile;
  using ValueTile = typename Shapes::ValueTile;
  using ScoreTile = typename Shapes::ScoreTile;
  static constexpr int threads = Shapes::threads;
  static constexpr int rows = Shapes::rows;
  static constexpr int features_at = Shapes::tiles_at;
  static constexpr int plain_at = features_at + FeatureTile::bytes;
  static constexpr int plain_keys_at = plain_at + Shapes::plain_bytes;
  static constexpr int scores_at = plain_keys_at + Shapes::plain_bytes;
  static constexpr int ring_at = scores_at + ScoreTile::bytes;
  static constexpr int stage_bytes = FeatureTile::bytes + ValueTile::bytes;
  static constexpr int stages = ring_at + 2 * stage_bytes <= machine::max_shared_bytes ? 2 : 1;
  static constexpr int shared_bytes = ring_at + stages * stage_bytes;
  static constexpr int min_blocks_per_sm = 1;
  static_assert(shared_bytes <= machine::max_shared_bytes);
  using Pairs = PairsOfThread<sees, rows, false>;

  PairOperands<T, Map, Rotates> of;
  Tokens<T> o;
  Update update;
  float epsilon;
  float score_scale;  // of scores while they have 16 bits, a power of two

  MHLA_DEVICE static FeatureTile key_tile(int tile) {
    return {static_cast<Shared>(ring_at + tile % stages * stage_bytes)};
  }
  MHLA_DEVICE static ValueTile value_tile(int tile) {
    return {static_cast<Shared>(ring_at + tile % stages * stage_bytes + FeatureTile::bytes)};
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();  // this is the first kernel of a call
    const BlockTable& table = of.q.x.table;
    const TokenRange xs = of.template query_tile<rows>(block.number);
    const Index kv_head = xs.head / of.sharing.heads;
    const EntryRange seen = keys_seen<sees>(table, of.k.x.table, of.packed, xs.begin, xs.end);
    const auto ys_of = [&](int tile) {
      return TokenRange{xs.item, kv_head, seen.begin + Index{tile} * rows, seen.end};
    };

    const FeatureTile features{Shared{features_at}};
    const FeatureTile plain_features{Shared{plain_at}};
    const FeatureTile plain_keys{Shared{plain_keys_at}};
    const ScoreTile scores_tile{Shared{scores_at}};
    const RowBlocks<rows> query_blocks = Shapes::query_blocks();
    const RowBlocks<rows> key_blocks = Shapes::key_blocks();
    const auto use_nothing = [](int, int, int, const float(&)[4]) {};
    const auto unweighted = [](int) { return 1.0f; };
    const auto end_nothing = [](int) {};

    copy_tokens<threads>(block, of.q.x, xs, features);
    query_blocks.look_up(block, table, xs, absent_query);
    const MixingOfHead mixing =
        mixing_of_head<threads>(block, of.mixing, xs.head, Shared{Shapes::mixing_at});
    typename Shapes::ValueSum sum;
    float denominator[2] = {0, 0};
    for_each_tile<stages>(
        block, seen.tiles<rows>(),
        [&](int tile) {
          copy_tokens<threads>(block, of.k.x, ys_of(tile), key_tile(tile));
          copy_tokens<threads>(block, of.v, ys_of(tile), value_tile(tile));
        },
        [&](int tile) {
          const TokenRange ys = ys_of(tile);
          if constexpr (is_twofold) {
            if (tile == 0) make_plain_features<threads>(block, of.q, xs, features, plain_features);
            make_plain_features<threads>(block, of.k, ys, key_tile(tile), plain_keys);
          }
          if (tile == 0)
            make_features<threads>(block, of.q, xs, features, unweighted, use_nothing, end_nothing);
          make_features<threads>(block, of.k, ys, key_tile(tile), unweighted, use_nothing,
                                 end_nothing);
          key_blocks.look_up(block, of.k.x.table, ys, absent_key);
          if (hides_some<sees, rows>(of.packed, table, xs.begin, ys.begin))
            look_for_infinities<threads>(block, value_tile(tile), exponent_bits<T>,
                                         Shapes::flags(0));
        },
        [&](int tile) {
          const Index y_begin = ys_of(tile).begin;
          const int ahead = entries_ahead<rows>(xs.begin, y_begin);
          Scores<rows> scores;
          multiply_add<T, KeyDim, Stored::straight, Stored::transposed>(block, scores, features,
                                                                        key_tile(tile));
          Pairs pairs;
          pairs.look_up(block, mixing, query_blocks, key_blocks, ahead);
          Pairs::for_each([&](int half, int n) {
            float w[2];
            for (int e = 0; e < 2; ++e)
              w[e] = pairs.counts(half, n + e)
                         ? pairs.weight[half][n + e] * Pairs::of(scores, half, n + e)
                         : 0.0f;
            if constexpr (!is_twofold) denominator[half] += w[0] + w[1];
            machine::write(scores_tile.at(Pairs::row_of(block, half), Pairs::col_of(block, n)),
                           machine::rounded_pair<T>(score_scale * w[0], score_scale * w[1]));
          });
          if constexpr (is_twofold) {
            Scores<rows> plain;
            multiply_add<T, KeyDim, Stored::straight, Stored::transposed>(
                block, plain, plain_features, plain_keys);
            pairs.add_row_sums(plain, denominator);
          }
          block.sync();
          if (hides_some<sees, rows>(of.packed, table, xs.begin, y_begin) &&
              found_infinities<Shapes::warps>(Shapes::flags(0))) {
            add_counted_pairs<T>(block, sum, scores_tile, value_tile(tile), [&](int x, int y) {
              return sees_pair<sees>(query_blocks[x], key_blocks[y], x, y, ahead);
            });
          } else {
            add_pairs<T>(block, sum, scores_tile, value_tile(tile));
          }
        });

    block.sync();  // tiles have been read
    if constexpr (Divides) write_row_sums<rows>(block, denominator, Shapes::sums(0));
    block.sync();
    const ValueTile out{Shared{ring_at}};
    const float unscale = 1 / score_scale;
    sum.for_each_pair(block, [&](int row, int col, float first, float second) {
      first *= unscale;
      second *= unscale;
      if constexpr (Divides) {
        const float den = row_sum<rows>(Shapes::sums(0), row) + epsilon;
        first = den == 0 ? 0.0f : first / den;
        second = den == 0 ? 0.0f : second / den;
      }
      machine::write(out.at(row, col), machine::rounded_pair<T>(first, second));
    });
    block.sync();
    store_tokens<threads>(block, out, o, xs, update);
  }
};

/// Launches it for `items` items of the batch; PairBytes::attend is what it moves.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sight sees, bool Divides>
void attend_pairs(const CudaDevice& device, Index items,
                  const AttendPairs<T, Map, Rotates, KeyDim, ValueDim, sees, Divides>& body) {
  machine::run(device,
               items * ceil_div(body.of.query_entries(), Index{body.rows}) * body.of.heads(), body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
