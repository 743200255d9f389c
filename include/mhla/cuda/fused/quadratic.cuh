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

#include <mhla/cuda/fused/quadratic_pairs.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

template <class Traits>
struct AttendPairs {
  using T = typename Traits::T;
  using Operands = typename Traits::Operands;
  static constexpr Sight sees = Traits::sees;
  static constexpr bool is_twofold = Traits::is_twofold;
  static constexpr int rows = Traits::tiles.own;
  static constexpr int columns = Traits::tiles.others;
  // Columns of scores at once: the longer the sums, the fewer registers are left for scores.
  static constexpr int strip = columns < 32 || Traits::value_dim > 96 ? 16 : 32;
  static constexpr int warps = rows / 16 * Traits::tiles.slices;
  static constexpr int threads = 32 * warps;
  using Memory = PairMemory<Traits, Side::queries, rows, warps, false>;
  using Pairs = WarpPairs<Traits, Side::queries, rows>;
  using Sum = WarpRows<Traits::value_dim / Traits::tiles.slices>;
  MHLA_HOST_DEVICE static constexpr Memory memory() { return {}; }
  static constexpr int shared_bytes = memory().bytes;
  static constexpr int min_blocks_per_sm = Traits::tiles.blocks_of_sm;

  Operands of;
  Tokens<T> o;
  Update update;
  float epsilon;
  float score_scale;  // of scores while they have 16 bits, a power of two

  Index blocks(Index items) const { return of.template tiles<Side::queries, rows>(items); }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();  // this is the first kernel of a call
    const TokenRange xs = of.template tile<Side::queries, rows>(block);
    copy_tokens<threads>(block, of.q.x, xs, memory().own);
    memory().own_blocks.look_up(block, of.q.x.table, of.packed, xs);
    Pairs pairs(block, memory(), of, xs.head, score_scale);
    pairs.template keep<threads>(block);
    Sum sum;
    float denominator[2] = {0, 0};
    RowsInRegisters<Traits::key_dim> queries;
    for_each_other_tile<AttendPairs>(
        block, of, of.v, xs, true, pairs, Ignore(), [&](int tile, bool hides) {
          if (tile == 0) queries.load(RowsInTile(block, memory().own, pairs.first_row));
          const bool spoilt = hides && found_infinities<warps>(memory().value_flags);
          add_tile(block, pairs, queries, tile, spoilt, sum, denominator);
        });
    store_rows(block, xs, pairs.first_row, sum, denominator);
  }

 private:
  /// The pairs of a warp's queries and a tile of keys.
  MHLA_DEVICE void add_tile(const Block& block, const Pairs& pairs,
                            const RowsInRegisters<Traits::key_dim>& queries, int tile, bool spoilt,
                            Sum& sum, float (&denominator)[2]) const {
    const auto keys = memory().others(tile);
    const auto values =
        from_column(memory().other_values(tile), Pairs::template first_column_of<Sum::cols>(block));
    MHLA_DEVICE_UNROLL
    for (int first = 0; first < columns; first += strip) {
      const Counted counted = pairs.counted(first, strip);
      if (counted == Counted::none) continue;
      auto p = product_with_rows<T, strip>(block, queries, keys, first);
      if constexpr (is_twofold)
        add_plain_scores<AttendPairs>(block, pairs, first, counted, denominator);
      pairs.weigh(block, p, first, counted, [&](int, int e, float weight, float score) {
        const float weighted = weight * score;
        if constexpr (!is_twofold) denominator[e / 2] += weighted;
        return weighted;
      });
      add_strip<T, Sum::cols>(block, pairs, sum, rounded<T>(p), values, first,
                              spoilt && counted == Counted::some);
    }
  }

  MHLA_DEVICE void store_rows(const Block& block, const TokenRange& xs, int first_row, Sum& sum,
                              float (&denominator)[2]) const {
    float factor[2];
    for (int half = 0; half < 2; ++half) {
      factor[half] = 1 / score_scale;
      if constexpr (Traits::divides) {
        const float den = sum_of_lanes<4>(denominator[half]) * factor[half] + epsilon;
        factor[half] = den == 0 ? 0.0f : factor[half] / den;
        denominator[half] = den;
      }
    }
    const auto out = from_column(memory().out, Pairs::template first_column_of<Sum::cols>(block));
    block.sync();  // tiles have been read
    sum.for_each_pair(block, [&](int half, int col, float first, float second) {
      const bool is_zero = Traits::divides && denominator[half] == 0;
      machine::write(out.at(first_row + Sum::row(block, half), col),
                     machine::rounded_pair<T>(is_zero ? 0.0f : first * factor[half],
                                              is_zero ? 0.0f : second * factor[half]));
    });
    block.sync();
    store_tokens<threads>(block, memory().out, o, xs, update);
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
