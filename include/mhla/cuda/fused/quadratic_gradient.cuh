// SPDX-License-Identifier: MIT
// The adjoint of attention as pairs of tokens, from q, k, v, mix and dy alone. With P = Q^r K^r^T,
// dP = dY V^T, m the weights of pairs in mix and s their sum over keys:
//
//   den = s(m P) + epsilon   r = 1 / den   c = -s(m P o dP) r^2      (r = 1, c = 0 undivided)
//   dQ^r = W K^r   dK^r = W^T Q^r   dV = (m r P)^T dY                W = m (r dP + c)
//   dm_ib = sum of P (r dP + c) over the tokens of i and b
//
// r dP and c are large and nearly cancel if values have a common mean: W is rounded to 16 bits
// after that, scaled by a power of two that keeps it in range. There is a kernel for each side,
// which owns its sums, so that their order is fixed: that of queries also sums dm, of pairs that it
// has in its registers, and passes r and c through memory to that of keys. If a rotation applies
// only to the numerators' features, c's parts are separate sums.
#pragma once

#include <mhla/cuda/fused/quadratic_pairs.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// The gradients of a thread block's own tokens from those of their features: scale `sum` and, of
/// unrotated features, plain_factor(half) `plain_sum`, which warps have in registers for 16 rows
/// from `first_row` on, or none if that is negative. A part of the rows at a time, through the tile
/// `gradient`. The tile `own` has the tokens and gets the result. Synchronizes the thread block.
template <class Kernel, class Map, bool Rotates, int Cols, int PlainCols, class PlainFactor>
MHLA_DEVICE void unmake_sums(const Block& block,
                             const FeatureTokens<typename Kernel::T, Map, Rotates>& of,
                             const TokenRange& range, int first_row, WarpRows<Cols>& sum,
                             [[maybe_unused]] WarpRows<PlainCols>& plain_sum, float scale,
                             [[maybe_unused]] const PlainFactor& plain_factor) {
  constexpr auto memory = &Kernel::memory;
  constexpr int threads = Kernel::threads;
  constexpr int columns = Kernel::Memory::Own::cols / Kernel::slices;
  using Gradient = typename Kernel::Memory::Gradient;
  const auto own = memory().own;
  const Gradient gradient = memory().gradient;
  const int first_column = Kernel::Pairs::template first_column_of<columns>(block);
  for (int begin = 0; begin < own.rows; begin += gradient.rows) {
    const int part_row = first_row - begin;
    const bool is_here = part_row >= 0 && part_row < gradient.rows;
    const TokenRange part = range.from(range.begin + begin);
    block.sync();  // the previous part has been read
    if (is_here)
      sum.template for_each_pair<columns>(block, [&](int half, int col, float first, float second) {
        gradient.write_pair(part_row + WarpRows<Cols>::row(block, half), first_column + col,
                            scale * first, scale * second);
      });
    block.sync();
    if constexpr (Kernel::is_twofold) {
      turn_back<threads>(block, of, part, gradient);
      block.sync();
      if (is_here)
        plain_sum.template for_each_pair<columns>(
            block, [&](int half, int col, float first, float second) {
              const Shared at =
                  gradient.at(part_row + WarpRows<Cols>::row(block, half), first_column + col);
              const auto before = machine::read<typename Gradient::Pair>(at);
              const float factor = plain_factor(half);
              machine::write(at, typename Gradient::Pair{before.first + factor * first,
                                                         before.second + factor * second});
            });
      block.sync();
    }
    unmake_features<threads, Rotates && !Kernel::is_twofold>(
        block, of, part, Tile<Gradient::rows, own.cols>{own.at(begin, 0)}, gradient,
        [](int) { return 1.0f; }, Ignore());
  }
  block.sync();
}

/// Common to the kernels of the backward pass.
template <class Traits>
struct PairGradientOperands {
  typename Traits::Operands of;
  Tokens<const typename Traits::T> dy;
  float* weights;      // r, [batch, heads, query entries]; both null without a normalizer
  float* sum_weights;  // c
  float gradient_scale;

  MHLA_DEVICE Index row(Index item, Index head, Index entry) const {
    return (item * of.sharing.all_heads() + head) * of.q.x.table.entries() + entry;
  }
  /// r and c of a tile's query, 0 if there is none.
  MHLA_DEVICE QueryWeights weights_of(const TokenRange& xs, int x) const {
    if (xs.begin + x >= xs.end) return {0, 0};
    const Index at = row(xs.item, xs.head, xs.begin + x);
    return {machine::load_from(weights + at), machine::load_from(sum_weights + at)};
  }
};

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
          sum_of_lanes<32>((of[0] == queries ? sum[0] : 0.0f) + (of[1] == queries ? sum[1] : 0.0f));
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
  static constexpr Sight sees = Traits::sees;
  static constexpr bool is_twofold = Traits::is_twofold;
  static constexpr int rows = Traits::tiles.own;
  static constexpr int columns = Traits::tiles.others;
  static constexpr int strip = columns < 32 ? columns : 32;
  static constexpr int slices = Traits::tiles.slices;
  static constexpr int row_warps = rows / 16;
  static constexpr int warps = row_warps * slices;
  static constexpr int threads = 32 * warps;
  using Memory = PairMemory<Traits, Side::queries, rows, warps, true>;
  using Pairs = WarpPairs<Traits, Side::queries, rows>;
  using Sum = WarpRows<Traits::key_dim / slices>;
  using PlainSum = std::conditional_t<is_twofold, Sum, WarpRows<8>>;
  MHLA_HOST_DEVICE static constexpr Memory memory() { return {}; }
  static constexpr int shared_bytes = memory().bytes;
  static constexpr int min_blocks_per_sm = Traits::tiles.blocks_of_sm;

  PairGradientOperands<Traits> operands;
  float epsilon;
  Tokens<T> dq;
  bool wants_query;
  Update update;
  MixingParts mixing;
  bool wants_mixing;

  Index blocks(Index items) const { return operands.of.template tiles<Side::queries, rows>(items); }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();  // this is the first kernel of a call
    const auto& of = operands.of;
    const TokenRange xs = of.template tile<Side::queries, rows>(block);
    if (Traits::divides || wants_mixing) copy_tokens<threads>(block, of.q.x, xs, memory().own);
    copy_tokens<threads>(block, operands.dy, xs, memory().own_values);
    memory().own_blocks.look_up(block, of.q.x.table, of.packed, xs);
    Pairs pairs(block, memory(), of, xs.head, 1);
    pairs.template keep<threads>(block);
    Sums sums;
    if constexpr (Traits::divides) {
      float denominator[2] = {0, 0};
      float product[2] = {0, 0};
      for_each_other_tile<QueryPairsGradient>(
          block, of, of.v, xs, true, pairs, Ignore(),
          [&](int tile, bool) { add_denominators(block, pairs, tile, denominator, product); });
      for (int half = 0; half < 2; ++half) {
        const float den = sum_of_lanes<4>(denominator[half]) + epsilon;
        sums.r[half] = den == 0 ? 0.0f : 1 / den;
        sums.c[half] = -sum_of_lanes<4>(product[half]) * sums.r[half] * sums.r[half];
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
    for_each_other_tile<QueryPairsGradient>(
        block, of, of.v, xs, !Traits::divides && wants_mixing, pairs, Ignore(),
        [&](int tile, bool hides) {
          const bool spoilt = hides && found_infinities<warps>(memory().feature_flags);
          add_tile(block, pairs, tile, spoilt, sums, store_mixing);
        });
    if (wants_mixing) sums.mixing.finish(block, pairs, store_mixing);
    const Block anew = machine::known_anew(block);
    if (wants_query)
      store_query(anew, of.template tile<Side::queries, rows>(anew), Pairs::first_row_of(anew),
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

  /// Of the pairs of a warp's queries and a tile of keys: s(m P) and s(m P o dP).
  MHLA_DEVICE void add_denominators(const Block& block, const Pairs& pairs, int tile,
                                    float (&denominator)[2], float (&product)[2]) const {
    const RowsInTile queries(block, memory().own, pairs.first_row);
    const RowsInTile dy(block, memory().own_values, pairs.first_row);
    const auto keys = memory().others(tile);
    const auto values = memory().other_values(tile);
    MHLA_DEVICE_UNROLL
    for (int first = 0; first < columns; first += strip) {
      const Counted counted = pairs.counted(first, strip);
      if (counted == Counted::none) continue;
      auto p = product_with_rows<T, strip>(block, queries, keys, first);
      const auto dp = product_with_rows<T, strip>(block, dy, values, first);
      pairs.weigh(block, p, first, counted, [&](int part, int e, float weight, float score) {
        score *= weight;
        if constexpr (!is_twofold) denominator[e / 2] += score;
        product[e / 2] += score * dp.value[part][e];
        return score;
      });
      if constexpr (is_twofold)
        add_plain_scores<QueryPairsGradient>(block, pairs, first, counted, denominator);
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
    block.sync();  // tiles have been read
    copy_tokens<threads>(block, operands.of.q.x, xs, memory().own);
    machine::commit_copies();
    machine::wait_for_copies<0>();
    const float unscale = 1 / operands.gradient_scale;
    unmake_sums<QueryPairsGradient>(block, operands.of.q, xs, first_row, sums.query, sums.key,
                                    unscale, [&](int half) { return unscale * sums.c[half]; });
    store_tokens<threads>(block, memory().own, dq, xs, update);
  }

  /// Of the pairs of a warp's queries and a tile of keys: query += W K, key += m K, and dm.
  template <class Store>
  MHLA_DEVICE void add_tile(const Block& block, const Pairs& pairs, int tile, bool spoilt,
                            Sums& sums, const Store& store_mixing) const {
    const auto keys = memory().others(tile);
    const auto values = memory().other_values(tile);
    const int first_column = Pairs::template first_column_of<Sum::cols>(block);
    const RowsInTile dy(block, memory().own_values, pairs.first_row);
    // Unrolled, what each strip has of its own would take the registers of the sums.
    MHLA_DEVICE_ROLLED
    for (int first = 0; first < columns; first += strip) {
      const Counted counted = pairs.counted(first, strip);
      if (counted == Counted::none) continue;
      const bool meets_infinities = spoilt && counted == Counted::some;
      auto w = product_with_rows<T, strip>(block, dy, values, first);
      WarpRows<strip> factors;  // of scores in dm: r dP + c, 0 where a pair does not count
      pairs.weigh(block, w, first, counted, [&](int part, int e, float weight, float product) {
        const float x =
            is_twofold ? sums.r[e / 2] * product : sums.r[e / 2] * product + sums.c[e / 2];
        factors.value[part][e] = x;
        return weight * x;
      });
      add_strip<T, Sum::cols>(block, pairs, sums.query, rounded<T>(w),
                              from_column(keys, first_column), first, meets_infinities);
      [[maybe_unused]] WarpRows<is_twofold ? strip : 8> plain_factors;  // c
      if constexpr (is_twofold) {
        // c multiplies m K only at the end: m is the same for all keys of a block, so that its
        // rounding would not average out; hence it is split into two parts.
        const auto plain_keys = from_column(memory().others_plain, first_column);
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
      const RowsInTile queries(block, memory().own, pairs.first_row);
      auto p = product_with_rows<T, strip>(block, queries, keys, first);
      p.for_each_element([&](int part, int e) { p.value[part][e] *= factors.value[part][e]; });
      if constexpr (is_twofold) {
        const RowsInTile plain(block, memory().own_plain, pairs.first_row);
        const auto plain_p =
            product_with_rows<T, strip>(block, plain, memory().others_plain, first);
        p.for_each_element([&](int part, int e) {
          p.value[part][e] += plain_p.value[part][e] * plain_factors.value[part][e];
        });
      }
      sums.mixing.add(block, pairs, p, first, store_mixing);
    }
  }
};

/// dk and dv: a thread block per tile of keys of a kv head, which loops over the queries that see
/// them, of all heads that share it. Half of its warps sum dv, the others dk:
///
///   dv = (m r (K Q^T))^T dY      dk^r = (m (r (V dY^T) + c))^T Q
template <class Traits>
struct KeyPairsGradient {
  using T = typename Traits::T;
  using Operands = typename Traits::Operands;
  static constexpr int KeyDim = Traits::key_dim;
  static constexpr int ValueDim = Traits::value_dim;
  static constexpr Sight sees = Traits::sees;
  static constexpr bool is_twofold = Traits::is_twofold;
  static constexpr int rows = Traits::tiles.own_of_two();
  static constexpr int columns = Traits::tiles.others;
  static constexpr int strip = columns < 32 ? columns : 32;
  static constexpr int slices = Traits::tiles.slices;
  static constexpr int warps = 2 * (rows / 16) * slices;
  static constexpr int threads = 32 * warps;
  using Memory = PairMemory<Traits, Side::keys, rows, warps, true>;
  using Pairs = WarpPairs<Traits, Side::keys, rows>;
  using Sum = WarpRows<(std::max)(KeyDim, ValueDim) / slices>;
  using PlainSum = WarpRows<is_twofold ? KeyDim / slices : 8>;
  MHLA_HOST_DEVICE static constexpr Memory memory() { return {}; }
  static constexpr int shared_bytes = memory().bytes;
  static constexpr int min_blocks_per_sm = Traits::tiles.blocks_of_sm;

  PairGradientOperands<Traits> operands;
  Tokens<T> dk;
  bool wants_key;
  Tokens<T> dv;
  bool wants_value;
  Update update;

  MHLA_DEVICE static bool sums_keys(const Block& block) { return block.warp() >= warps / 2; }

  Index blocks(Index items) const { return operands.of.template tiles<Side::keys, rows>(items); }

  MHLA_DEVICE void operator()(const Block& block) const {
    // The first kernel of a call, unless the query kernel made weights; then tokens are valid.
    if constexpr (!Traits::divides) machine::wait_for_earlier_kernels();
    const auto& of = operands.of;
    const TokenRange ys = of.template tile<Side::keys, rows>(block);
    copy_tokens<threads>(block, of.k.x, ys, memory().own);
    copy_tokens<threads>(block, of.v, ys, memory().own_values);
    memory().own_blocks.look_up(block, of.k.x.table, of.packed, ys);
    if constexpr (Traits::divides) machine::wait_for_earlier_kernels();
    Pairs pairs(block, memory(), of, -1, 1);
    Sum sum;
    PlainSum plain_sum;  // of unrotated queries, if features are twofold
    for_each_other_tile<KeyPairsGradient>(
        block, of, operands.dy, ys, true, pairs,
        [&](const TokenRange& xs) {
          if (pairs.head != xs.head) {
            pairs.head = xs.head;
            pairs.template keep<threads>(block);
          }
          write_weights(block, xs);
        },
        [&](int tile, bool hides) { add_tile(block, pairs, tile, hides, sum, plain_sum); });
    const Block anew = machine::known_anew(block);
    store_sums(anew, of.template tile<Side::keys, rows>(anew), Pairs::first_row_of(anew), sum,
               plain_sum);
  }

 private:
  MHLA_DEVICE void write_weights(const Block& block, const TokenRange& xs) const {
    const int x = block.thread;
    if (!Traits::divides || x >= columns) return;
    QueryWeights of = operands.weights_of(xs, x);
    of.r *= operands.gradient_scale;
    of.c *= operands.gradient_scale;
    machine::write(memory().value_weights.at(x), QueryWeights{of.r, 0});
    machine::write(memory().key_weights.at(x), of);
  }

  /// The pairs of a warp's keys and a tile of queries.
  MHLA_DEVICE void add_tile(const Block& block, const Pairs& pairs, int tile, bool hides, Sum& sum,
                            [[maybe_unused]] PlainSum& plain_sum) const {
    const auto keys = memory().own;
    const auto values = memory().own_values;
    const auto queries = memory().others(tile);
    const auto dy = memory().other_values(tile);
    const bool of_keys = sums_keys(block);
    if (!(of_keys ? wants_key : wants_value)) return;
    const bool spoilt =
        hides && found_infinities<warps>(of_keys ? memory().feature_flags : memory().value_flags);
    const auto weights = of_keys && !is_twofold ? memory().key_weights : memory().value_weights;
    if constexpr (KeyDim == ValueDim) {  // the same instructions for all warps
      add_products(block, pairs, of_keys ? values : keys, of_keys ? dy : queries,
                   of_keys ? queries : dy, weights, spoilt, sum);
    } else if (of_keys) {
      add_products(block, pairs, values, dy, queries, weights, spoilt, sum);
    } else {
      add_products(block, pairs, keys, queries, dy, weights, spoilt, sum);
    }
    if constexpr (is_twofold)
      if (of_keys) add_plain_queries(block, pairs, spoilt, plain_sum);
  }

  /// sum += (m (r (A B^T) + c)) C.
  template <int Inner, int Outer>
  MHLA_DEVICE void add_products(const Block& block, const Pairs& pairs, const Tile<rows, Inner>& a,
                                const Tile<columns, Inner>& b, const Tile<columns, Outer>& c,
                                const SharedArray<QueryWeights>& weights, bool spoilt,
                                Sum& sum) const {
    const RowsInTile factor(block, a, pairs.first_row);
    MHLA_DEVICE_UNROLL
    for (int first = 0; first < columns; first += strip) {
      const Counted counted = pairs.counted(first, strip);
      if (counted == Counted::none) continue;
      auto w = product_with_rows<T, strip>(block, factor, b, first);
      pairs.weigh(block, w, first, counted, [&](int part, int e, float weight, float product) {
        if constexpr (Traits::divides) {
          const int column = first + WarpRows<strip>::column(block, part) + e % 2;
          const auto of = machine::read<QueryWeights>(weights.at(column));
          return weight * (of.r * product + of.c);
        } else {
          return weight * (operands.gradient_scale * product);
        }
      });
      add_strip<T, Outer / slices>(
          block, pairs, sum, rounded<T>(w),
          from_column(c, Pairs::template first_column_of<Outer / slices>(block)), first,
          spoilt && counted == Counted::some);
    }
  }

  /// sum += (m c) Q of unrotated queries.
  MHLA_DEVICE void add_plain_queries(const Block& block, const Pairs& pairs, bool spoilt,
                                     PlainSum& sum) const {
    const auto queries =
        from_column(memory().others_plain, Pairs::template first_column_of<KeyDim / slices>(block));
    MHLA_DEVICE_UNROLL
    for (int first = 0; first < columns; first += strip) {
      const Counted counted = pairs.counted(first, strip);
      if (counted == Counted::none) continue;
      WarpRows<strip> w;
      pairs.weigh(block, w, first, counted, [&](int part, int e, float weight, float) {
        const int column = first + WarpRows<strip>::column(block, part) + e % 2;
        return weight * machine::read<QueryWeights>(memory().key_weights.at(column)).c;
      });
      add_strip<T, KeyDim / slices>(block, pairs, sum, rounded<T>(w), queries, first,
                                    spoilt && counted == Counted::some);
    }
  }

  MHLA_DEVICE void store_sums(const Block& block, const TokenRange& ys, int first_row, Sum& sum,
                              PlainSum& plain_sum) const {
    const auto values = memory().own_values;
    const float unscale = 1 / operands.gradient_scale;
    block.sync();  // tiles have been read
    if (wants_key) copy_tokens<threads>(block, operands.of.k.x, ys, memory().own);
    machine::commit_copies();
    if (wants_value && !sums_keys(block)) {
      constexpr int columns_of_warp = ValueDim / slices;
      const int first_column = Pairs::template first_column_of<columns_of_warp>(block);
      sum.template for_each_pair<columns_of_warp>(
          block, [&](int half, int col, float first, float second) {
            machine::write(values.at(first_row + Sum::row(block, half), first_column + col),
                           machine::rounded_pair<T>(unscale * first, unscale * second));
          });
    }
    machine::wait_for_copies<0>();
    block.sync();
    if (wants_value) store_tokens<threads>(block, values, dv, ys, update);
    if (!wants_key) return;
    unmake_sums<KeyPairsGradient>(block, operands.of.k, ys, sums_keys(block) ? first_row : -rows,
                                  sum, plain_sum, unscale, [&](int) { return unscale; });
    store_tokens<threads>(block, memory().own, dk, ys, update);
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
