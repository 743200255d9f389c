// SPDX-License-Identifier: MIT
// Attention whose block summaries never leave shared memory (arXiv 2601.07832, eqs. 3 to 5). A
// thread block has the summaries of all blocks of one sequence and kv head, for one mixing matrix
// and a slice of value columns:
//
//   key blocks:    S_b = sum_s phi^r(k_s) v_s^T, in 16 bits     z_b = sum_s phi(k_s), in float
//   mixing:        S~_i = sum_b m_ib S_b     z~_i = sum_b m_ib z_b     causal: over b <= i
//   query blocks:  y_t = phi^r(q_t) S~_i / (phi(q_t) z~_i + epsilon), 0 where that is 0
//
// in sequence, S~ overwriting S. So q, k and v are read once per slice, and y is written once.
// Blocks see their own keys whole.
#pragma once

#include <mhla/cuda/fused/readout.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

template <class Traits, int Slice, bool Divides>
struct AttendResident {
  using T = typename Traits::T;
  static constexpr int key_dim = Traits::key_dim;
  using Tiles = TileReadOut<Traits, Slice, Divides, NoOwnTokens>;
  using FeatureTile = typename Tiles::FeatureTile;
  using ValueTile = typename Tiles::ValueTile;
  using SummaryTile = Tile<key_dim, Slice, true>;  // dense
  // Of few columns, more warps share the rows, so that none is without parts.
  static constexpr int col_warps = Slice > 16 ? 4 : 2;
  using SummarySum = Accumulators<key_dim, Slice, 8 / col_warps, col_warps>;
  using MatrixTile = Tile<max_resident_blocks, max_resident_blocks>;
  using KeySum =
      KeySumsOfTiles<Traits, SummarySum, Divides ? KeySums::plain : KeySums::none, false>;
  using Four = Vector<float, 4>;
  static constexpr int rows = Tiles::rows;
  static constexpr int slices = Traits::value_dim / Slice;
  MHLA_HOST_DEVICE static constexpr ResidentMemory memory() {
    return {key_dim, Slice, Divides, Traits::rotates};
  }
  static constexpr int teams = memory().teams;
  static constexpr int team_threads = Tiles::threads;
  static constexpr int threads = teams * team_threads;
  static constexpr int warps = threads / 32;
  static constexpr int min_blocks_per_sm = 2 / teams;
  static constexpr int stages = memory().stages;
  static constexpr int inner_parts = max_resident_blocks / 16;  // of a column of all blocks
  static_assert(Traits::value_dim % Slice == 0 && Tiles::warps == memory().warps);
  static_assert(KeySum::bytes <= memory().warp_sum_bytes);
  static_assert(memory().key_sum >= SummaryTile::bytes);
  static_assert(has_no_bank_conflicts<16>([](int lane) {
                  return lane % 8 * memory().record_bytes;
                }),
                "eight blocks of a matrix load would share banks");

  FeatureTokens<T, typename Traits::Map, Traits::rotates> q;
  FeatureTokens<T, typename Traits::Map, Traits::rotates> k;
  Tokens<const T> v;
  Tokens<T> y;
  Sharing sharing;
  MixingWeights mixing;
  Sight sight;
  Sequence queries;
  Sequence keys;
  float scale;  // a power of two that scales summaries before rounding
  float epsilon;
  NoOwnTokens own = {};

  /// For one sequence of each item.
  Index blocks(Index items) const {
    return queries.blocks == 0 ? 0 : items * sharing.kv_heads * sharing.matrices * slices;
  }
  /// Per thread block.
  int shared_bytes() const {
    return memory().bytes(static_cast<int>((std::max)(queries.blocks, keys.blocks)));
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();  // this is the first kernel of a call
    summarize(block);
    block.sync();  // the ring has been read, and key sums are complete
    split_matrix(block);
    if constexpr (Divides) mix_key_sums(block);
    block.sync();
    if (sight == Sight::all) {
      mix_summaries<false>(block);
    } else {
      mix_summaries<true>(block);
    }
    read_out(block);
  }

 private:
  /// A thread block's work.
  struct Part {
    int column;  // the first of the value columns
    int kv_head;
    int head;  // the first query head that its matrix mixes for
    int item;
  };
  MHLA_DEVICE Part part_of(const Block& block) const {
    BlockIndices indices(machine::known_anew(block));
    Part part;
    part.column = indices.next(slices) * Slice;
    const int matrix = indices.next(sharing.matrices);
    part.kv_head = indices.next(sharing.kv_heads);
    part.head = part.kv_head * sharing.heads + matrix * sharing.heads_of_matrix();
    part.item = static_cast<int>(indices.rest);
    return part;
  }

  /// For each tile, by one team or by two.
  template <class BeginCopy, class Landed, class Use>
  MHLA_DEVICE static void for_each(const Block& block, int tiles, const BeginCopy& begin_copy,
                                   const Landed& landed, const Use& use) {
    if constexpr (teams == 1) {
      for_each_tile<stages>(block, tiles, begin_copy, landed, use);
    } else {
      for_each_tile_in_teams(block, block.warp() < Tiles::warps, tiles, begin_copy, landed, use);
    }
  }
  MHLA_DEVICE static FeatureTile features(int tile) {
    return Ring<FeatureTile, stages>{memory().features}[tile % stages];
  }
  MHLA_DEVICE static ValueTile values(int tile) {
    return Ring<ValueTile, stages>{memory().values}[tile % stages];
  }
  MHLA_DEVICE static MatrixTile high() { return {memory().matrix}; }
  MHLA_DEVICE static MatrixTile low() { return {high().begin + Shared{MatrixTile::bytes}}; }
  MHLA_DEVICE static Shared record(int b, int at = 0) {
    return memory().records + static_cast<Shared>(b * memory().record_bytes + at);
  }
  MHLA_DEVICE static SummaryTile summary(int b) { return {record(b)}; }
  MHLA_DEVICE static Shared key_sum(int b) { return record(b, memory().key_sum); }
  MHLA_DEVICE static Shared mixed_key_sum(int i) { return record(i, memory().mixed_key_sum); }
  MHLA_DEVICE bool sees(int i, int b) const {
    return i < queries.blocks && b < keys.blocks && sees_whole_block(sight, i, b);
  }

  /// S_b and z_b of every key block.
  MHLA_DEVICE void summarize(const Block& block) const {
    const Part part = part_of(block);
    TileCursor tile(k.x.table, part.item, part.kv_head, 1, keys.first_block);
    TileCursor ahead = tile;
    const Block team = block.in_team(team_threads);
    int b = 0;
    SummarySum sum;
    KeySum key_sums(team, memory().warp_sums);
    for_each(
        block, static_cast<int>(keys.blocks) * k.x.table.tiles_of_block(rows),
        [&](int n) {
          copy_tokens<team_threads>(team, k.x, ahead.range, features(n));
          copy_tokens<team_threads>(team, v, ahead.range, values(n), part.column);
          ahead.template next<rows>();
        },
        [&](int n) {
          make_features<team_threads>(
              team, k, tile.range, features(n), [](int) { return 1.0f; },
              [&](int, int i, const typename Strips<key_dim>::Elements& of_strip) {
                key_sums.add_strip(team, i, of_strip, 1.0f);
              },
              Ignore());
          if constexpr (teams > 1) tile.template next<rows>();
        },
        [&](int n) {
          key_sums.multiply_add(team, sum, features(n), values(n));
          if (tile.template next<rows>()) keep(team, b++, sum, key_sums);
        });
  }

  /// Stores a block's sums, and starts those of the next.
  MHLA_DEVICE void keep(const Block& block, int b, SummarySum& sum, KeySum& key_sums) const {
    const Shared at = summary(b).at(SummarySum::first_row(block), SummarySum::first_col(block));
    sum.for_each_pair_from(block, [&](int down, int right, float first, float second) {
      machine::write(at + SummaryTile::chunk_offset(down, right / chunk_size),
                     machine::rounded_pair<T>(scale * first, scale * second));
    });
    sum = {};
    key_sums.finish(block, [&](int col, float of_column) {
      machine::write<float>(key_sum(b) + static_cast<Shared>(col * 4), of_column);
    });
  }

  /// m = high + low, both rounded to T: in full parts of 16 x 16, with zeros for unseen blocks.
  MHLA_DEVICE void split_matrix(const Block& block) const {
    const int head = part_of(block).head;
    const int columns = static_cast<int>(keys.blocks + 15) / 16 * 8;  // pairs
    const int elements = static_cast<int>(queries.blocks + 15) / 16 * 16 * columns;
    for (int n = block.thread; n < elements; n += threads) {
      const int i = n / columns;
      const int b = n % columns * 2;
      float first = sees(i, b) ? mixing.at(head, i, b) : 0.0f;
      float second = sees(i, b + 1) ? mixing.at(head, i, b + 1) : 0.0f;
      machine::write(high().at(i, b), split_off<T>(first, second));
      machine::write(low().at(i, b), machine::rounded_pair<T>(first, second));
    }
  }

  /// z~_i of every query block.
  MHLA_DEVICE void mix_key_sums(const Block& block) const {
    const int head = part_of(block).head;
    constexpr int columns = key_dim / 4;
    for (int n = block.thread; n < static_cast<int>(queries.blocks) * columns; n += threads) {
      const int i = n / columns;
      const auto of_column = static_cast<Shared>(n % columns * 16);
      Four sum{};
      for (int b = 0; b < keys.blocks; ++b) {
        if (!sees(i, b)) continue;
        const float weight = mixing.at(head, i, b);
        const auto of_block = machine::read<Four>(key_sum(b) + of_column);
        for (int e = 0; e < 4; ++e) sum.element[e] += weight * of_block.element[e];
      }
      machine::write(mixed_key_sum(i) + of_column, sum);
    }
  }

  /// S~_i of every query block. A warp processes 16 columns of all blocks at a time, which no other
  /// warp reads or writes.
  template <bool guards>
  MHLA_DEVICE void mix_summaries(const Block& block) const {
    const int lane = block.lane();
    const int last = static_cast<int>(keys.blocks) - 1;
    for (int column = block.warp() * 2; column < key_dim * SummaryTile::chunks;
         column += warps * 2) {
      std::uint32_t inner[std::size_t{inner_parts}][4];
      MHLA_DEVICE_UNROLL
      for (int p = 0; p < inner_parts; ++p) {
        if (p * 16 > last) continue;
        // Rows past the last repeat it and are not used.
        const int b = p * 16 + lane % 16 < last ? p * 16 + lane % 16 : last;
        machine::load_matrices_transposed(inner[p],
                                          summary(b).begin + of_chunk(column + lane / 16));
      }
      block.sync_warp();
      for (int row = 0; row < queries.blocks; row += 16) {
        float sum[2][4] = {};
        MHLA_DEVICE_UNROLL
        for (int p = 0; p < inner_parts; ++p)
          if (p * 16 <= last) add_mixed<guards>(block, row, p * 16, inner[p], sum);
        MHLA_DEVICE_UNROLL
        for (int x = 0; x < 4; ++x) {
          const int i = row + lane / 4 + x / 2 * 8;
          const float(&of)[4] = sum[x % 2];
          if (i < queries.blocks)
            machine::write(
                summary(i).begin + of_chunk(column + x % 2) + static_cast<Shared>(lane % 4 * 4),
                machine::rounded_pair<T>(of[x / 2 * 2], of[x / 2 * 2 + 1]));
        }
      }
    }
  }
  MHLA_DEVICE static Shared of_chunk(int chunk) { return static_cast<Shared>(chunk * 16); }

  /// sum += m S, of 16 rows of the matrix, 16 inner rows and 16 columns.
  template <bool guards>
  MHLA_DEVICE void add_mixed(const Block& block, int row, int first,
                             const std::uint32_t (&inner)[4], float (&sum)[2][4]) const {
    if (guards && !sees_whole_block(sight, row + 15, first)) return;
    std::uint32_t of_high[4];
    std::uint32_t of_low[4];
    const int of_row = row + block.lane() % 16;
    const int chunk = first / chunk_size + block.lane() / 16;
    machine::load_matrices(of_high, high().chunk(of_row, chunk));
    machine::load_matrices(of_low, low().chunk(of_row, chunk));
    const bool guarded = guards && !sees_whole_block(sight, row, first + 15);
    std::uint32_t seen[4] = {};
    if (guarded)
      ones_where_seen<T>(
          block, row, first, [&](int i, int b) { return sees(i, b); }, seen);
    MHLA_DEVICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      std::uint32_t upper = inner[2 * half];
      std::uint32_t lower = inner[2 * half + 1];
      if (guarded) guard_unseen<T>(seen, upper, lower, sum[half]);
      machine::multiply_add<T>(sum[half], of_high, upper, lower);
      machine::multiply_add<T>(sum[half], of_low, upper, lower);
    }
  }

  /// The readout of a tile, the n-th, of block i.
  MHLA_DEVICE Tiles readout(int n, int i) const {
    const bool is_next = teams > 1 && n % 2 == 1;
    return {q,
            own,
            Tiles::epsilon_for(epsilon, q.scale),
            {mixed_key_sum(i)},
            is_next ? memory().next_denominators : memory().denominators};
  }
  /// y of every query of the heads that the matrix mixes for.
  MHLA_DEVICE void read_out(const Block& block) const {
    const Part part = part_of(block);
    TileCursor tile(q.x.table, part.item, part.head, sharing.heads_of_matrix(),
                    queries.first_block);
    TileCursor ahead = tile;
    const Block team = block.in_team(team_threads);
    const int tiles =
        static_cast<int>(queries.blocks) * tile.heads * q.x.table.tiles_of_block(rows);
    int i = 0;
    TokenRange done = tile.range;  // what the previous tile of values has the results of
    for_each(
        block, tiles,
        [&](int n) {
          copy_tokens<team_threads>(team, q.x, ahead.range, features(n));
          ahead.template next<rows>();
        },
        [&](int n) {
          readout(n, i).make_query_features(team, tile.range, features(n));
          if constexpr (teams > 1)
            if (tile.template next<rows>()) ++i;
        },
        [&](int n) {
          if (teams > 1 && n > 0) store(team, n - 1, done, part.column);
          typename Tiles::Sum sum;
          multiply_add<T, Stored::not_transposed, Stored::not_transposed>(team, sum, features(n),
                                                                          summary(i));
          if constexpr (teams > 1) {
            readout(n, i).assemble(team, sum, 1 / scale, values(n));
            done = tile.range;
          } else {
            readout(n, i).finish(block, sum, scale, features(n), tile.range, sharing, y,
                                 part.column);
          }
          if (tile.template next<rows>()) ++i;
        });
    if constexpr (teams > 1) {
      block.sync();
      if (block.warp() >= Tiles::warps && tiles > 0) store(team, tiles - 1, done, part.column);
    }
  }
  /// Stores the results of a tile, the n-th.
  MHLA_DEVICE void store(const Block& team, int n, const TokenRange& range, int column) const {
    store_tokens<team_threads>(team, values(n), y, range, Update::overwrite, column);
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
