// SPDX-License-Identifier: MIT
// Attention whose block summaries never leave shared memory (arXiv 2601.07832, eqs. 3 to 5). A
// thread block has the summaries of all blocks of one sequence and kv head, for one mixing matrix
// and a slice of value columns:
//
//   key blocks:    S_b = sum_s phi^r(k_s) v_s^T, in 16 bits     z_b = sum_s phi(k_s), in float
//   mixing:        S~_i = sum_b m_ib S_b     z~_i = sum_b m_ib z_b     causal: over b <= i - lag
//   query blocks:  y_t = phi^r(q_t) S~_i / (phi(q_t) z~_i + epsilon), 0 where that is 0
//
// in sequence, S~ overwriting S. So q, k and v are read once per slice, and y is written once.
// Causal blocks add their own tokens as in readout.cuh.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/product.cuh>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/chip/tile_ring.cuh>
#include <mhla/cuda/fused/block_mixing.cuh>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/own_tokens.cuh>
#include <mhla/cuda/fused/readout.cuh>
#include <mhla/cuda/fused/resident.hpp>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/policy/causality.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

template <class Traits, int Slice, bool Divides, class Own = NoOwnTokens>
struct AttendResident {
  using T = typename Traits::T;
  static constexpr int KeyDim = Traits::key_dim;
  using Features = FeatureTokens<T, typename Traits::Map, Traits::rotates>;
  using Tiles = TileReadOut<Traits, Slice, Divides, Own>;
  using FeatureTile = typename Tiles::FeatureTile;
  using ValueTile = typename Tiles::ValueTile;
  using SummaryTile = DenseTile<KeyDim, Slice>;
  using SummarySum = Accumulators<KeyDim, Slice, 4, 2>;
  using MatrixTile = Tile<max_resident_blocks, max_resident_blocks>;
  using KeySum =
      KeySumsOfTiles<Traits, SummarySum, Divides ? KeySums::plain : KeySums::none, false>;
  static constexpr int threads = Tiles::threads;
  static constexpr int warps = Tiles::warps;
  static constexpr int min_blocks_per_sm = 1;
  static constexpr int rows = Tiles::rows;
  static constexpr int slices = Traits::value_dim / Slice;
  static constexpr ResidentShape shape{KeyDim, Slice, Divides, Tiles::adds_own};
  static constexpr int stages = shape.stages;
  static constexpr int read_out_stages = shape.read_out_stages();
  static constexpr int inner_parts = max_resident_blocks / 16;  // of a column of all blocks
  static_assert(Traits::value_dim % Slice == 0 && warps == shape.warps);
  static constexpr int denominators_at = shape.denominators_at();
  static constexpr int own_sums_at = shape.own_sums_at();
  static constexpr int flags_at = shape.flags_at();
  static constexpr int warp_sums_at = shape.warp_sums_at();
  static constexpr int ring_at = shape.ring_at();
  static constexpr int stage_bytes = shape.stage_bytes();
  static constexpr int scores_at = shape.scores_at();
  static constexpr int records_at = shape.records_at();
  static constexpr int record_bytes = shape.record_bytes();
  static constexpr int key_sum_at = shape.key_sum_at();
  static constexpr int mixed_key_sum_at = shape.mixed_key_sum_at();
  static_assert(ring_at % 16 == 0 && records_at % 16 == 0 && key_sum_at >= SummaryTile::bytes);
  static_assert(2 * MatrixTile::bytes <= scores_at - ring_at);
  static_assert(has_no_bank_conflicts<16>([](int lane) { return lane % 8 * record_bytes; }),
                "eight blocks of a matrix load would share banks");

  Features q;
  Features k;
  Tokens<const T> v;
  Tokens<T> o;
  Sharing sharing;
  MixingWeights mixing;
  Sight sight;
  Sequence queries;
  Sequence keys;
  float scale;  // a power of two that scales summaries before rounding
  float epsilon;
  Own own;

  /// Per thread block.
  int shared_bytes() const {
    return shape.bytes(static_cast<int>(std::max(queries.blocks, keys.blocks)));
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();  // this is the first kernel of a call
    BlockIndices indices(block);
    Part part;
    part.column = indices.next(slices) * Slice;
    const int matrix = indices.next(sharing.matrices);
    part.kv_head = indices.next(sharing.kv_heads);
    part.item = static_cast<int>(indices.rest);
    part.head = part.kv_head * sharing.heads + matrix * sharing.heads_of_matrix();

    summarize(block, part);
    block.sync();  // the ring has been read, and key sums are complete
    split_matrix(block, part);
    if constexpr (Divides) mix_key_sums(block, part);
    block.sync();
    mix_summaries(block);
    read_out(block, part);
  }

 private:
  /// A thread block's work.
  struct Part {
    Index item;
    Index kv_head;
    Index head;  // the first query head that its matrix mixes for
    int column;  // the first of the value columns
  };
  struct alignas(16) FourFloats {
    float value[4];
  };

  MHLA_DEVICE static Shared place(int at) { return static_cast<Shared>(at); }
  MHLA_DEVICE static FeatureTile feature_tile(int slot) {
    return {place(ring_at + slot * stage_bytes)};
  }
  MHLA_DEVICE static ValueTile value_tile(int slot) {
    return {place(ring_at + slot * stage_bytes + FeatureTile::bytes)};
  }
  MHLA_DEVICE static MatrixTile high() { return {Shared{ring_at}}; }
  MHLA_DEVICE static MatrixTile low() { return {Shared{ring_at + MatrixTile::bytes}}; }
  MHLA_DEVICE static Shared record(int b) { return place(records_at + b * record_bytes); }
  MHLA_DEVICE static SummaryTile summary(int b) { return {record(b)}; }
  MHLA_DEVICE static Shared key_sum(int b) { return record(b) + Shared{key_sum_at}; }
  MHLA_DEVICE static Shared mixed_key_sum(int i) { return record(i) + Shared{mixed_key_sum_at}; }
  MHLA_DEVICE bool sees(int i, int b) const {
    return i < queries.blocks && b < keys.blocks && sees_whole_block(sight, i, b);
  }

  /// S_b and z_b of every key block.
  MHLA_DEVICE void summarize(const Block& block, const Part& part) const {
    const int of_block = k.x.table.tiles_of_block(rows);
    const auto range_of = [&](int tile) {
      const TokenRange all = TokenRange::of_block(k.x.table, part.item, part.kv_head,
                                                  keys.first_block + tile / of_block);
      return all.from(all.begin + tile % of_block * rows);
    };
    SummarySum sum;
    KeySum key_sums(block, Shared{warp_sums_at});
    for_each_tile<stages>(
        block, static_cast<int>(keys.blocks) * of_block,
        [&](int tile) {
          copy_tokens<threads>(block, k.x, range_of(tile), feature_tile(tile % stages));
          copy_tokens<threads>(block, v, range_of(tile), value_tile(tile % stages), part.column);
        },
        [&](int tile) {
          make_features<threads>(
              block, k, range_of(tile), feature_tile(tile % stages), [](int) { return 1.0f; },
              [&](int, int i, const typename Strips<KeyDim>::Elements& features) {
                key_sums.add_strip(block, i, features, 1.0f);
              },
              [](int) {});
        },
        [&](int tile) {
          key_sums.template multiply_add<rows>(block, sum, feature_tile(tile % stages),
                                               value_tile(tile % stages));
          if (tile % of_block == of_block - 1) keep(block, tile / of_block, sum, key_sums);
        });
  }

  /// Stores a block's sums, and starts those of the next.
  MHLA_DEVICE void keep(const Block& block, int b, SummarySum& sum, KeySum& key_sums) const {
    const SummaryTile to = summary(b);
    sum.for_each_pair(block, [&](int row, int col, float first, float second) {
      machine::write(to.at(row, col), machine::rounded_pair<T>(scale * first, scale * second));
    });
    sum.clear();
    key_sums.finish(block, [&](int col, float of_column) {
      machine::write<float>(key_sum(b) + static_cast<Shared>(col * 4), of_column);
    });
  }

  /// m = high + low, both rounded to T: in full parts of 16 x 16, with zeros for unseen blocks.
  MHLA_DEVICE void split_matrix(const Block& block, const Part& part) const {
    const int columns = static_cast<int>(keys.blocks + 15) / 16 * 8;  // pairs
    const int elements = static_cast<int>(queries.blocks + 15) / 16 * 16 * columns;
    for (int n = block.thread; n < elements; n += threads) {
      const int i = n / columns;
      const int b = n % columns * 2;
      float first = sees(i, b) ? mixing.at(part.head, i, b) : 0.0f;
      float second = sees(i, b + 1) ? mixing.at(part.head, i, b + 1) : 0.0f;
      machine::write(high().at(i, b), split_off<T>(first, second));
      machine::write(low().at(i, b), machine::rounded_pair<T>(first, second));
    }
  }

  /// z~_i of every query block.
  MHLA_DEVICE void mix_key_sums(const Block& block, const Part& part) const {
    constexpr int columns = KeyDim / 4;
    for (int n = block.thread; n < static_cast<int>(queries.blocks) * columns; n += threads) {
      const int i = n / columns;
      const auto of_column = static_cast<Shared>(n % columns * 16);
      FourFloats sum{};
      for (int b = 0; b < keys.blocks; ++b) {
        if (!sees(i, b)) continue;
        const float weight = mixing.at(part.head, i, b);
        const auto of_block = machine::read<FourFloats>(key_sum(b) + of_column);
        for (int e = 0; e < 4; ++e) sum.value[e] += weight * of_block.value[e];
      }
      machine::write(mixed_key_sum(i) + of_column, sum);
    }
  }

  /// S~_i of every query block. A warp processes 16 columns of all blocks at a time, which no other
  /// warp reads or writes.
  MHLA_DEVICE void mix_summaries(const Block& block) const {
    const int lane = block.lane();
    const int last = static_cast<int>(keys.blocks) - 1;
    for (int column = block.warp() * 2; column < SummaryTile::all_chunks; column += warps * 2) {
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
          if (p * 16 <= last) add_mixed(block, row, p * 16, inner[p], sum);
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
  MHLA_DEVICE void add_mixed(const Block& block, int row, int first,
                             const std::uint32_t (&inner)[4], float (&sum)[2][4]) const {
    if (!sees_whole_block(sight, row + 15, first)) return;
    std::uint32_t of_high[4];
    std::uint32_t of_low[4];
    const int of_row = row + block.lane() % 16;
    const int chunk = first / chunk_size + block.lane() / 16;
    machine::load_matrices(of_high, high().chunk(of_row, chunk));
    machine::load_matrices(of_low, low().chunk(of_row, chunk));
    const bool guarded = !sees_whole_block(sight, row, first + 15);
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

  /// y of every query of the heads that the matrix mixes for.
  MHLA_DEVICE void read_out(const Block& block, const Part& part) const {
    constexpr int slots = read_out_stages;
    const BlockTable& table = q.x.table;
    const int of_block = table.tiles_of_block(rows);
    const auto blocks = static_cast<int>(queries.blocks);
    const auto block_of = [&](int tile) { return tile / of_block % blocks; };
    const auto range_of = [&](int tile) {
      const TokenRange all =
          TokenRange::of_block(table, part.item, part.head + tile / of_block / blocks,
                               queries.first_block + block_of(tile));
      return all.from(all.begin + tile % of_block * rows);
    };
    const float of_features = Tiles::epsilon_for(epsilon, q.scale);
    const auto readout_of = [&](int tile) {
      return Tiles{q, own, of_features, places(block_of(tile))};
    };
    for_each_tile<slots>(
        block, sharing.heads_of_matrix() * blocks * of_block,
        [&](int tile) {
          copy_tokens<threads>(block, q.x, range_of(tile), feature_tile(tile % slots));
        },
        [&](int tile) {
          readout_of(tile).make_query_features(block, range_of(tile), feature_tile(tile % slots));
        },
        [&](int tile) {
          const FeatureTile features = feature_tile(tile % slots);
          const TokenRange range = range_of(tile);
          const Tiles readout = readout_of(tile);
          typename Tiles::Sum sum;
          multiply_add<T, KeyDim, Stored::straight, Stored::straight>(block, sum, features,
                                                                      summary(block_of(tile)));
          float unscale = 1 / scale;
          if constexpr (Tiles::adds_own) {
            sum.scale(unscale);
            unscale = 1;
            readout.add_own(block, features, range, part.item * sharing.kv_heads + part.kv_head,
                            part.kv_head, queries.first_block + block_of(tile), part.column, sum);
          }
          block.sync();  // features have been read, denominators written
          const ValueTile out{features.begin};
          readout.write(block, sum, unscale, out);
          block.sync();
          store_tokens<threads>(block, out, o, range, Update::overwrite, part.column);
        });
  }
  MHLA_DEVICE static ReadOutMemory places(int i) {
    ReadOutMemory at{};
    at.key_sum = mixed_key_sum(i);
    at.denominators = denominators_at;
    at.own_sums = own_sums_at;
    at.flags = flags_at;
    at.scores = scores_at;
    at.others = feature_tile(1).begin;
    at.values = value_tile(1).begin;
    return at;
  }
};

/// Launches it for `items` items of the batch and one sequence of each.
template <class Traits, int Slice, bool Divides, class Own>
void attend_resident(const CudaDevice& device, Index items,
                     const AttendResident<Traits, Slice, Divides, Own>& body) {
  if (body.queries.blocks == 0) return;
  machine::run(device, items * body.sharing.kv_heads * body.sharing.matrices * body.slices, body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
