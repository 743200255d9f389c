// SPDX-License-Identifier: MIT
// Attention as pairs of tokens, without summaries: for short sequences, whose tokens are fewer than
// a summary's elements. A thread block has a tile of queries of one head, from any blocks, and
// loops over the tiles of keys that they see:
//
//   W_ts = m_ib phi^r(q_t).phi^r(k_s)    den_t = sum_s m_ib phi(q_t).phi(k_s) + epsilon
//   o_t = sum_s W_ts v_s / den_t, 0 where den_t is 0
//
// i and b the blocks of t and s; with a rotation of the numerators' features, denominators have
// their own scores. A warp has 16 queries: their scores stay in its registers, and have 16 bits
// only as a factor of the second product; denominators stay in float.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/chip/warp_product.cuh>
#include <mhla/cuda/fused/quadratic_pairs.cuh>
#include <mhla/cuda/fused/tokens.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

template <class Traits>
struct AttendPairs {
  using T = typename Traits::T;
  using Operands = typename Traits::Operands;
  static constexpr int KeyDim = Traits::key_dim;
  static constexpr int ValueDim = Traits::value_dim;
  static constexpr Sight sees = Traits::sees;
  static constexpr bool is_twofold = Traits::is_twofold;
  static constexpr int rows = Traits::tiles.own;
  static constexpr int columns = Traits::tiles.others;
  // Columns of scores at once: the longer the sums, the fewer registers are left for scores.
  static constexpr int strip = columns < 32 || Traits::value_dim > 96 ? 16 : 32;
  static constexpr int row_warps = rows / 16;
  static constexpr int warps = row_warps * Traits::tiles.slices;
  static constexpr int threads = 32 * warps;
  using Memory = PairMemory<Traits, rows, warps, false, true>;
  using QueryTile = typename Memory::Own;
  using KeyTile = typename Memory::Others;
  using ValueTile = typename Memory::OtherValues;
  using Pairs = WarpPairs<sees, false, rows, columns>;
  using Rows = RowsInTile<KeyDim, QueryTile>;
  using Sum = WarpRows<ValueDim / Traits::tiles.slices>;

  static constexpr int shared_bytes = Memory::at.bytes;
  static constexpr int min_blocks_per_sm = Traits::tiles.blocks_of_sm;

  Operands of;
  Tokens<T> o;
  Update update;
  float epsilon;
  float score_scale;  // of scores while they have 16 bits, a power of two

  /// Thread blocks for `items` items of the batch.
  Index blocks(Index items) const {
    return items * ceil_div(of.query_entries(), rows) * of.sharing.all_heads();
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();  // this is the first kernel of a call
    const TokenRange xs = of.template query_tile<rows>(block);
    copy_tokens<threads>(block, of.q.x, xs, QueryTile{Memory::at.own.begin});
    RowBlocks<rows>{Memory::at.own_blocks.begin}.look_up(block, of.q.x.table, of.packed, xs);
    auto pairs = Memory::template pairs<Pairs>(block, of, of.k.x.table, xs.head, score_scale);
    pairs.mixing.template keep<threads>(block, pairs.kept);
    Sum sum;
    float denominator[2] = {0, 0};
    RowsInRegisters<KeyDim> queries;
    for_each_key_tile<AttendPairs, false>(block, of, xs, true, pairs, [&](int tile, bool spoilt) {
      if (tile == 0) queries.load(Rows(block, QueryTile{Memory::at.own.begin}, pairs.first_row));
      add_tile(block, pairs, queries, Memory::others(tile), Memory::other_values(tile), spoilt, sum,
               denominator);
    });
    store_rows(block, xs, pairs.first_row, sum, denominator);
  }

 private:
  MHLA_DEVICE static int first_column_of(const Block& block) {
    return block.warp() / row_warps * Sum::cols;
  }

  /// The pairs of a warp's queries and a tile of keys.
  MHLA_DEVICE void add_tile(const Block& block, const Pairs& pairs,
                            const RowsInRegisters<KeyDim>& queries, const KeyTile& keys,
                            const ValueTile& values, bool spoilt, Sum& sum,
                            float (&denominator)[2]) const {
    [[maybe_unused]] const Rows plain_queries(block, QueryTile{Memory::at.own_plain.begin},
                                              pairs.first_row);
    MHLA_DEVICE_UNROLL
    for (int first = 0; first < columns; first += strip) {
      const Counted counted = pairs.counted(first, strip);
      if (counted == Counted::none) continue;
      auto p = product_with_rows<T, KeyDim, strip>(block, queries, keys, first);
      if constexpr (is_twofold) {
        auto plain = product_with_rows<T, KeyDim, strip>(
            block, plain_queries, KeyTile{Memory::at.others_plain.begin}, first);
        pairs.weigh(block, plain, first, counted, [&](int, int e, float weight, float score) {
          denominator[e / 2] += weight * score;
          return 0.0f;
        });
      }
      pairs.weigh(block, p, first, counted, [&](int, int e, float weight, float score) {
        const float weighted = weight * score;
        if constexpr (!is_twofold) denominator[e / 2] += weighted;
        return weighted;
      });
      add_strip<T, Sum::cols>(block, pairs, sum, rounded<T>(p),
                              from_column(values, first_column_of(block)), first,
                              spoilt && counted == Counted::some);
    }
  }

  MHLA_DEVICE void store_rows(const Block& block, const TokenRange& xs, int first_row, Sum& sum,
                              float (&denominator)[2]) const {
    float factor[2];
    for (int half = 0; half < 2; ++half) {
      factor[half] = 1 / score_scale;
      if constexpr (Traits::divides) {
        const float den = sum_of_warp_row(denominator[half]) * factor[half] + epsilon;
        factor[half] = den == 0 ? 0.0f : factor[half] / den;
        denominator[half] = den;
      }
    }
    const typename Memory::OwnValues out{Memory::at.out.begin};
    block.sync();  // tiles have been read
    sum.for_each_pair(block, [&](int half, int col, float first, float second) {
      const bool is_zero = Traits::divides && denominator[half] == 0;
      machine::write(out.at(first_row + Sum::row(block, half), first_column_of(block) + col),
                     machine::rounded_pair<T>(is_zero ? 0.0f : first * factor[half],
                                              is_zero ? 0.0f : second * factor[half]));
    });
    block.sync();
    store_tokens<threads>(block, out, o, xs, update);
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
