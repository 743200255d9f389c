// SPDX-License-Identifier: MIT
// The query side of quadratic_gradient.cuh: dq, dmix, of pairs that it has in its registers, and r
// and c, which the key side reads.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/product.cuh>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/chip/warp_product.cuh>
#include <mhla/cuda/fused/quadratic.hpp>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/fused/quadratic_pairs.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Parts of dmix, of which a warp writes each: of every query head, and of every run of a block's
/// queries among the warp's.
struct MixingParts {
  float* data;  // [items, runs, heads, blocks of the table, mix columns]
  int runs;
  int heads;
  int columns;

  /// Of a block's queries from `entry`, the first one of a warp, on.
  MHLA_DEVICE float* row(const BlockTable& table, Index item, int head, int b, int entry) const {
    const int run = entry / pair_warp_rows - table.begin_of(b) / pair_warp_rows;
    const Index matrix = (item * runs + run) * heads + head;
    return data + (matrix * table.blocks + b) * columns;
  }
};

/// Sums the parts of packed sequences' blocks that have one row of mix, in the table's order.
struct AddSequences {
  BlockTable table;
  MixingParts from;
  Index rows;  // of mix
  float* to;   // [parts, rows, columns]

  MHLA_HOST_DEVICE void operator()(Index at) const {
    const Index column = at % from.columns;
    const Index row = at / from.columns % rows;
    const float* const part = from.data + at / from.columns / rows * table.blocks * from.columns;
    float sum = 0;
    for (Index b = 0; b < table.blocks; ++b)
      if (table.mix_rows.data[b] == row) sum += part[b * from.columns + column];
    to[at] = sum;
  }
};

/// dm of a warp's queries and all keys. Keys come in order, so that a block of them is complete
/// when the next one begins.
template <class Pairs>
struct WarpMixingGradient {
  float sum[2] = {0, 0};  // of this thread's queries and the keys of one block
  RowBlock keys{-1, 0};

  /// Adds pairs of the columns [first, first + Strip) of a tile, 0 where one does not count.
  template <int Strip, class Store>
  MHLA_DEVICE void add(const Block& block, const Pairs& pairs, const WarpRows<Strip>& products,
                       int first, const Store& store) {
    MHLA_DEVICE_UNROLL
    for (int part = 0; part < Strip / 8; ++part) {
      int column = first + part * 8;
      const RowBlock last = pairs.columns[column + 7];
      while (true) {
        const RowBlock of = pairs.columns[column];
        if (!(of == keys)) {
          finish(block, pairs, store);
          keys = of;
        }
        MHLA_DEVICE_UNROLL
        for (int e = 0; e < 4; ++e)
          if (pairs.has_eights ||
              pairs.columns[first + WarpRows<Strip>::column(block, part) + e % 2] == of)
            sum[e / 2] += products.value[part][e];
        if (of == last) break;
        while (pairs.columns[column] == of) ++column;
      }
    }
  }
  /// Calls store(row, queries, column, sum) for each block of the warp's queries, of which `row` is
  /// the first: what the last block of keys, a column of mix, brings.
  template <class Store>
  MHLA_DEVICE void finish(const Block& block, const Pairs& pairs, const Store& store) {
    const RowBlock of[2] = {pairs.rows[pairs.row(block, 0)], pairs.rows[pairs.row(block, 1)]};
    const int last = pairs.first_row + pair_warp_rows - 1;
    const RowBlock end = pairs.rows[last];
    int row = pairs.first_row;
    while (keys.mix_index >= 0) {
      const RowBlock queries = pairs.rows[row];
      const float of_run =
          sum_of_warp((of[0] == queries ? sum[0] : 0.0f) + (of[1] == queries ? sum[1] : 0.0f));
      if (block.lane() == 0 && queries.sequence == keys.sequence)
        store(row, queries, keys.mix_index, of_run);
      if (queries == end) break;
      while (pairs.rows[row] == queries) ++row;
    }
    sum[0] = sum[1] = 0;
  }
};

/// dq, parts of dmix, and r and c of every query: a thread block per tile of queries of one head.
/// The first pass over the keys sums den and s(m P o dP).
template <class Traits>
struct QueryPairsGradient {
  using T = typename Traits::T;
  using Operands = typename Traits::Operands;
  static constexpr int KeyDim = Traits::key_dim;
  static constexpr int ValueDim = Traits::value_dim;
  static constexpr Sight sees = Traits::sees;
  static constexpr bool is_twofold = Traits::is_twofold;
  static constexpr int rows = Traits::tiles.own;
  static constexpr int columns = Traits::tiles.others;
  static constexpr int strip = columns < 32 ? columns : 32;
  static constexpr int row_warps = rows / 16;
  static constexpr int warps = row_warps * Traits::tiles.slices;
  static constexpr int threads = 32 * warps;
  using Memory = PairMemory<Traits, rows, warps, true, true>;
  using QueryTile = typename Memory::Own;
  using OutTile = typename Memory::OwnValues;
  using KeyTile = typename Memory::Others;
  using ValueTile = typename Memory::OtherValues;
  using Pairs = WarpPairs<sees, false, rows, columns>;
  using Queries = RowsInTile<KeyDim, QueryTile>;
  using Outs = RowsInTile<ValueDim, OutTile>;
  using Sum = WarpRows<KeyDim / Traits::tiles.slices>;
  using PlainSum = std::conditional_t<is_twofold, Sum, WarpRows<8>>;

  static constexpr int shared_bytes = Memory::at.bytes;
  static constexpr int min_blocks_per_sm = Traits::tiles.blocks_of_sm;
  PairGradientOperands<Traits> operands;
  float epsilon;
  Tokens<T> dq;
  bool wants_query;
  Update update;
  MixingParts mixing;
  bool wants_mixing;

  /// Thread blocks for `items` items of the batch.
  Index blocks(Index items) const {
    return items * ceil_div(operands.of.query_entries(), rows) * operands.of.sharing.all_heads();
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();  // this is the first kernel of a call
    const auto& of = operands.of;
    const TokenRange xs = of.template query_tile<rows>(block);
    const QueryTile query_tile{Memory::at.own.begin};
    const OutTile dy_tile{Memory::at.own_values.begin};
    if (Traits::divides || wants_mixing) copy_tokens<threads>(block, of.q.x, xs, query_tile);
    copy_tokens<threads>(block, operands.dy, xs, dy_tile);
    RowBlocks<rows>{Memory::at.own_blocks.begin}.look_up(block, of.q.x.table, of.packed, xs);
    auto pairs = Memory::template pairs<Pairs>(block, of, of.k.x.table, xs.head, 1);
    pairs.mixing.template keep<threads>(block, pairs.kept);
    Sums sums;
    if constexpr (Traits::divides) {
      float denominator[2] = {0, 0};
      float product[2] = {0, 0};
      for_each_key_tile<QueryPairsGradient, true>(block, of, xs, true, pairs, [&](int tile, bool) {
        add_denominators(block, pairs, Memory::others(tile), Memory::other_values(tile),
                         denominator, product);
      });
      for (int half = 0; half < 2; ++half) {
        const float den = sum_of_warp_row(denominator[half]) + epsilon;
        sums.r[half] = den == 0 ? 0.0f : 1 / den;
        sums.c[half] = -sum_of_warp_row(product[half]) * sums.r[half] * sums.r[half];
        store_weights(block, xs, pairs.row(block, half), den == 0, sums.r[half], sums.c[half]);
      }
      if (!wants_query && !wants_mixing) return;
    }

    for (int half = 0; half < 2; ++half) {
      sums.r[half] *= operands.gradient_scale;
      sums.c[half] *= operands.gradient_scale;
    }
    const auto store_mixing = [&](int row, const RowBlock& query, int column, float of_pairs) {
      if (block.warp() >= row_warps || xs.begin + row >= xs.end) return;
      machine::store_to(
          mixing.row(of.q.x.table, xs.item, xs.head, query.in_table(), xs.begin + row) + column,
          of_pairs / operands.gradient_scale);
    };
    for_each_key_tile<QueryPairsGradient, true>(
        block, of, xs, !Traits::divides && wants_mixing, pairs, [&](int tile, bool spoilt) {
          add_tile(block, pairs, Memory::others(tile), Memory::other_values(tile), spoilt, sums,
                   store_mixing);
        });
    if (wants_mixing) sums.mixing.finish(block, pairs, store_mixing);
    const Block anew = machine::known_anew(block);
    if (wants_query)
      store_query(anew, of.template query_tile<rows>(anew), Pairs::first_row_of(anew, row_warps),
                  sums);
  }

 private:
  struct Sums {
    float r[2] = {1, 1};
    float c[2] = {0, 0};
    Sum query;
    PlainSum key;  // s(m K), if features are twofold
    WarpMixingGradient<Pairs> mixing;
  };
  MHLA_DEVICE static int first_column_of(const Block& block) {
    return block.warp() / row_warps * Sum::cols;
  }

  /// Of the pairs of a warp's queries and a tile of keys: s(m P) and s(m P o dP).
  MHLA_DEVICE void add_denominators(const Block& block, const Pairs& pairs, const KeyTile& keys,
                                    const ValueTile& values, float (&denominator)[2],
                                    float (&product)[2]) const {
    const Queries queries(block, QueryTile{Memory::at.own.begin}, pairs.first_row);
    [[maybe_unused]] const Queries plain_queries(block, QueryTile{Memory::at.own_plain.begin},
                                                 pairs.first_row);
    const Outs dy(block, OutTile{Memory::at.own_values.begin}, pairs.first_row);
    MHLA_DEVICE_UNROLL
    for (int first = 0; first < columns; first += strip) {
      const Counted counted = pairs.counted(first, strip);
      if (counted == Counted::none) continue;
      auto p = product_with_rows<T, KeyDim, strip>(block, queries, keys, first);
      const auto dp = product_with_rows<T, ValueDim, strip>(block, dy, values, first);
      pairs.weigh(block, p, first, counted, [&](int part, int e, float weight, float score) {
        score *= weight;
        if constexpr (!is_twofold) denominator[e / 2] += score;
        product[e / 2] += score * dp.value[part][e];
        return score;
      });
      if constexpr (is_twofold) {
        auto plain = product_with_rows<T, KeyDim, strip>(
            block, plain_queries, KeyTile{Memory::at.others_plain.begin}, first);
        pairs.weigh(block, plain, first, counted, [&](int, int e, float weight, float score) {
          denominator[e / 2] += weight * score;
          return 0.0f;
        });
      }
    }
  }

  MHLA_DEVICE void store_weights(const Block& block, const TokenRange& xs, int row, bool is_zero,
                                 float r, float c) const {
    if (block.lane() % 4 != 0 || block.warp() >= row_warps || xs.begin + row >= xs.end) return;
    is_zero = is_zero || RangeTokens(operands.of.q.x.table, xs)(row) == absent.token;
    const Index to = operands.row(xs.item, xs.head, xs.begin + row);
    machine::store_to(operands.weights + to, is_zero ? 0.0f : r);
    machine::store_to(operands.sum_weights + to, is_zero ? 0.0f : c);
  }

  MHLA_DEVICE void store_query(const Block& block, const TokenRange& xs, int first_row,
                               Sums& sums) const {
    const auto& of = operands.of;
    const QueryTile query_tile{Memory::at.own.begin};
    block.sync();  // tiles have been read
    copy_tokens<threads>(block, of.q.x, xs, query_tile);
    machine::commit_copies();
    machine::wait_for_copies<0>();
    const typename Memory::Gradient gradient{Memory::at.gradient.begin};
    const float unscale = 1 / operands.gradient_scale;
    if constexpr (is_twofold) {
      unmake_sums<threads, Sum::cols>(
          block, of.q, xs, query_tile, gradient, first_row, first_column_of(block), sums.query,
          unscale, [&](int part_row) {
            add_sums<Sum::cols>(block, gradient, part_row, first_column_of(block), sums.key,
                                [&](int half) { return unscale * sums.c[half]; });
          });
    } else {
      unmake_sums<threads, Sum::cols>(block, of.q, xs, query_tile, gradient, first_row,
                                      first_column_of(block), sums.query, unscale, nullptr);
    }
    store_tokens<threads>(block, query_tile, dq, xs, update);
  }

  template <int Cols, class F>
  MHLA_DEVICE static void for_each_element(const F& f) {
    MHLA_DEVICE_UNROLL
    for (int part = 0; part < WarpRows<Cols>::parts; ++part) {
      MHLA_DEVICE_UNROLL
      for (int e = 0; e < 4; ++e) f(part, e);
    }
  }
  /// Of the pairs of a warp's queries and a tile of keys: query += W K, key += m K, and dm.
  template <class Store>
  MHLA_DEVICE void add_tile(const Block& block, const Pairs& pairs, const KeyTile& keys,
                            const ValueTile& values, bool spoilt, Sums& sums,
                            const Store& store_mixing) const {
    const Outs dy(block, OutTile{Memory::at.own_values.begin}, pairs.first_row);
    // Unrolled, what each strip has of its own would take the registers of the sums.
    MHLA_DEVICE_ROLLED
    for (int first = 0; first < columns; first += strip) {
      const Counted counted = pairs.counted(first, strip);
      if (counted == Counted::none) continue;
      const bool meets_infinities = spoilt && counted == Counted::some;
      auto w = product_with_rows<T, ValueDim, strip>(block, dy, values, first);
      WarpRows<strip> factors;  // of scores in dm: r dP + c, 0 where a pair does not count
      pairs.weigh(block, w, first, counted, [&](int part, int e, float weight, float product) {
        const float x =
            is_twofold ? sums.r[e / 2] * product : sums.r[e / 2] * product + sums.c[e / 2];
        factors.value[part][e] = x;
        return weight * x;
      });
      add_strip<T, Sum::cols>(block, pairs, sums.query, rounded<T>(w),
                              from_column(keys, first_column_of(block)), first, meets_infinities);
      [[maybe_unused]] WarpRows<is_twofold ? strip : 8> plain_factors;  // c
      if constexpr (is_twofold) {
        // c multiplies m K only at the end: m is the same for all keys of a block, so that its
        // rounding would not average out; hence it is split into two parts.
        const KeyTile plain_keys =
            from_column(KeyTile{Memory::at.others_plain.begin}, first_column_of(block));
        pairs.weigh(block, w, first, counted, [&](int part, int e, float weight, float) {
          plain_factors.value[part][e] = sums.c[e / 2];
          return weight;
        });
        MHLA_DEVICE_UNROLL
        for (int half = 0; half < 2; ++half)
          add_strip<T, Sum::cols>(block, pairs, sums.key, rounded<T>(w), plain_keys, first,
                                  meets_infinities);
      }
      if (!wants_mixing) continue;
      const Queries queries(block, QueryTile{Memory::at.own.begin}, pairs.first_row);
      auto p = product_with_rows<T, KeyDim, strip>(block, queries, keys, first);
      for_each_element<strip>([&](int part, int e) { p.value[part][e] *= factors.value[part][e]; });
      if constexpr (is_twofold) {
        const Queries plain(block, QueryTile{Memory::at.own_plain.begin}, pairs.first_row);
        const auto plain_p = product_with_rows<T, KeyDim, strip>(
            block, plain, KeyTile{Memory::at.others_plain.begin}, first);
        for_each_element<strip>([&](int part, int e) {
          p.value[part][e] += plain_p.value[part][e] * plain_factors.value[part][e];
        });
      }
      sums.mixing.add(block, pairs, p, first, store_mixing);
    }
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
