// SPDX-License-Identifier: MIT
// The key side of quadratic_gradient.cuh: dk and dv, with r and c of the queries.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/shared_layout.hpp>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/chip/warp_product.cuh>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/fused/quadratic_pairs.cuh>
#include <mhla/cuda/fused/token_pairs.cuh>
#include <mhla/cuda/fused/tokens.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// dk and dv: a thread block per tile of keys of a kv head, which loops over the queries that see
/// them, of all heads that share it. Half of its warps sum dv, the others dk:
///
///   dv = (m r (K Q^T))^T dY      dk^r = (m (r (V dY^T) + c))^T Q
template <class Traits>
struct KeyPairsGradient {
  using T = typename Traits::T;
  static constexpr int KeyDim = Traits::key_dim;
  static constexpr int ValueDim = Traits::value_dim;
  static constexpr Sight sees = Traits::sees;
  static constexpr bool is_twofold = Traits::is_twofold;
  static constexpr int rows = Traits::tiles.own_of_two();
  static constexpr int columns = Traits::tiles.others;
  static constexpr int strip = columns < 32 ? columns : 32;
  static constexpr int row_warps = rows / 16;
  static constexpr int slices = Traits::tiles.slices;
  static constexpr int warps = 2 * row_warps * slices;
  static constexpr int threads = 32 * warps;
  using Memory = PairMemory<Traits, rows, warps, true, false>;
  using KeyTile = typename Memory::Own;
  using ValueTile = typename Memory::OwnValues;
  using QueryTile = typename Memory::Others;
  using OutTile = typename Memory::OtherValues;
  using Pairs = WarpPairs<sees, true, rows, columns>;
  using Sum = WarpRows<(std::max)(KeyDim, ValueDim) / slices>;
  using PlainSum = WarpRows<is_twofold ? KeyDim / slices : 8>;

  static constexpr int shared_bytes = Memory::at.bytes;
  static constexpr int stages = Memory::at.stages;
  static constexpr int min_blocks_per_sm = Traits::tiles.blocks_of_sm;

  PairGradientOperands<Traits> operands;
  Tokens<T> dk;
  bool wants_key;
  Tokens<T> dv;
  bool wants_value;
  Update update;

  /// What warps of one kind read of every query: r, and c or 0.
  enum class Kind { values, keys, plain };
  MHLA_DEVICE static SharedArray<QueryWeights> weights_of(Kind kind) {
    const SharedArray<QueryWeights> all{Memory::at.weights.begin};
    return {all.at(static_cast<int>(kind) * columns)};
  }
  MHLA_DEVICE static bool sums_keys(const Block& block) { return block.warp() >= warps / 2; }
  /// Of Dim columns, this warp's.
  template <int Dim>
  MHLA_DEVICE static int first_column_of(const Block& block) {
    return block.warp() / row_warps % slices * (Dim / slices);
  }

  /// Thread blocks for `items` items of the batch.
  Index blocks(Index items) const {
    return items * ceil_div(operands.of.key_entries(), rows) * operands.of.sharing.kv_heads;
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    // The first kernel of a call, unless the query kernel made weights; then tokens are valid.
    if constexpr (!Traits::divides) machine::wait_for_earlier_kernels();
    const auto& of = operands.of;
    const BlockTable& table = of.k.x.table;
    const TokenRange ys = of.template key_tile<rows>(block);
    const auto seeing =
        queries_that_see<sees, columns>(of.q.x.table, table, of.packed, ys.begin, ys.end);
    const int tiles_of_head = seeing.tiles();
    const auto xs_of = [&, first_head = ys.head * of.sharing.heads](int tile) {
      return seeing.tile(ys.item, first_head + tile / tiles_of_head, tile % tiles_of_head);
    };
    const auto hides = [&](int tile) {
      return hides_some<sees>(of.packed, table, xs_of(tile).begin, ys.begin, rows);
    };

    copy_tokens<threads>(block, of.k.x, ys, KeyTile{Memory::at.own.begin});
    copy_tokens<threads>(block, of.v, ys, ValueTile{Memory::at.own_values.begin});
    RowBlocks<rows>{Memory::at.own_blocks.begin}.look_up(block, table, of.packed, ys);
    if constexpr (Traits::divides) machine::wait_for_earlier_kernels();
    auto pairs = Memory::template pairs<Pairs>(block, of, of.q.x.table, 0, 1);
    Sum sum;
    PlainSum plain_sum;  // of unrotated queries, if features are twofold
    for_each_tile<stages>(
        block, tiles_of_head * of.sharing.heads,
        [&](int tile) {
          copy_tokens<threads>(block, of.q.x, xs_of(tile), Memory::others(tile));
          copy_tokens<threads>(block, operands.dy, xs_of(tile), Memory::other_values(tile));
        },
        [&](int tile) {
          const TokenRange xs = xs_of(tile);
          if (tile == 0)
            make_flagged_features<threads, Side::keys>(
                block, of.k, ys, KeyTile{Memory::at.own.begin}, false, Shared{0});
          if constexpr (is_twofold)
            make_plain_features<threads>(block, of.q, xs, Memory::others(tile),
                                         QueryTile{Memory::at.others_plain.begin});
          make_flagged_features<threads, Side::queries>(
              block, of.q, xs, Memory::others(tile), hides(tile), Memory::at.feature_flags.begin);
          if (hides(tile))
            look_for_infinities<threads>(block, Memory::other_values(tile), exponent_bits<T>,
                                         Memory::at.value_flags.begin);
          RowBlocks<columns>{Memory::at.other_blocks.begin}.look_up(block, of.q.x.table, of.packed,
                                                                    xs);
          if (tile % tiles_of_head == 0) {
            pairs.mixing.head = xs.head;
            pairs.mixing.template keep<threads>(block, pairs.kept);
          }
          write_weights(block, xs);
        },
        [&](int tile) {
          pairs.ahead = static_cast<int>(ys.begin - xs_of(tile).begin);
          add_tile(block, pairs, Memory::others(tile), Memory::other_values(tile), hides(tile), sum,
                   plain_sum);
        });
    const Block anew = machine::known_anew(block);
    store_sums(anew, of.template key_tile<rows>(anew), Pairs::first_row_of(anew, row_warps), sum,
               plain_sum);
  }

 private:
  MHLA_DEVICE void write_weights(const Block& block, const TokenRange& xs) const {
    const int x = block.thread;
    if (!Traits::divides || x >= columns) return;
    QueryWeights of = operands.weights_of(xs, x);
    of.r *= operands.gradient_scale;
    of.c *= operands.gradient_scale;
    machine::write(weights_of(Kind::values).at(x), QueryWeights{of.r, 0});
    machine::write(weights_of(Kind::keys).at(x), QueryWeights{of.r, is_twofold ? 0 : of.c});
    if constexpr (is_twofold) machine::write(weights_of(Kind::plain).at(x), QueryWeights{0, of.c});
  }

  /// The pairs of a warp's keys and a tile of queries.
  MHLA_DEVICE void add_tile(const Block& block, const Pairs& pairs, const QueryTile& queries,
                            const OutTile& dy, bool hides, Sum& sum,
                            [[maybe_unused]] PlainSum& plain_sum) const {
    const KeyTile keys{Memory::at.own.begin};
    const ValueTile values{Memory::at.own_values.begin};
    const bool of_keys = sums_keys(block);
    if (!(of_keys ? wants_key : wants_value)) return;
    const bool spoilt = hides && found_infinities<warps>(of_keys ? Memory::at.feature_flags.begin
                                                                 : Memory::at.value_flags.begin);
    const SharedArray<QueryWeights> weights = weights_of(of_keys ? Kind::keys : Kind::values);
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
    const RowsInTile<Inner, Tile<rows, Inner>> factor(block, a, pairs.first_row);
    MHLA_DEVICE_UNROLL
    for (int first = 0; first < columns; first += strip) {
      const Counted counted = pairs.counted(first, strip);
      if (counted == Counted::none) continue;
      auto w = product_with_rows<T, Inner, strip>(block, factor, b, first);
      pairs.weigh(block, w, first, counted, [&](int part, int e, float weight, float product) {
        if constexpr (Traits::divides) {
          const int column = first + WarpRows<strip>::column(block, part) + e % 2;
          const auto of = machine::read<QueryWeights>(weights.at(column));
          return weight * (of.r * product + of.c);
        } else {
          return weight * (operands.gradient_scale * product);
        }
      });
      add_strip<T, Outer / slices>(block, pairs, sum, rounded<T>(w),
                                   from_column(c, first_column_of<Outer>(block)), first,
                                   spoilt && counted == Counted::some);
    }
  }

  /// sum += (m c) Q of unrotated queries.
  MHLA_DEVICE void add_plain_queries(const Block& block, const Pairs& pairs, bool spoilt,
                                     PlainSum& sum) const {
    MHLA_DEVICE_UNROLL
    for (int first = 0; first < columns; first += strip) {
      const Counted counted = pairs.counted(first, strip);
      if (counted == Counted::none) continue;
      WarpRows<strip> w;
      pairs.weigh(block, w, first, counted, [&](int part, int e, float weight, float) {
        const int column = first + WarpRows<strip>::column(block, part) + e % 2;
        return weight * machine::read<QueryWeights>(weights_of(Kind::plain).at(column)).c;
      });
      add_strip<T, KeyDim / slices>(
          block, pairs, sum, rounded<T>(w),
          from_column(QueryTile{Memory::at.others_plain.begin}, first_column_of<KeyDim>(block)),
          first, spoilt && counted == Counted::some);
    }
  }

  MHLA_DEVICE void store_sums(const Block& block, const TokenRange& ys, int first_row, Sum& sum,
                              [[maybe_unused]] PlainSum& plain_sum) const {
    const auto& of = operands.of;
    const KeyTile keys{Memory::at.own.begin};
    const ValueTile values{Memory::at.own_values.begin};
    const float unscale = 1 / operands.gradient_scale;
    block.sync();  // tiles have been read
    if (wants_key) copy_tokens<threads>(block, of.k.x, ys, keys);
    machine::commit_copies();
    if (wants_value && !sums_keys(block))
      sum.template for_each_pair<ValueDim / slices>(
          block, [&](int half, int col, float first, float second) {
            machine::write(values.at(first_row + Sum::row(block, half),
                                     first_column_of<ValueDim>(block) + col),
                           machine::rounded_pair<T>(unscale * first, unscale * second));
          });
    machine::wait_for_copies<0>();
    block.sync();
    if (wants_value) store_tokens<threads>(block, values, dv, ys, update);
    if (!wants_key) return;
    const typename Memory::Gradient gradient{Memory::at.gradient.begin};
    const int key_row = sums_keys(block) ? first_row : -rows;
    const int key_column = first_column_of<KeyDim>(block);
    if constexpr (is_twofold) {
      unmake_sums<threads, KeyDim / slices>(
          block, of.k, ys, keys, gradient, key_row, key_column, sum, unscale, [&](int part_row) {
            add_sums<KeyDim / slices>(block, gradient, part_row, key_column, plain_sum,
                                      [&](int) { return unscale; });
          });
    } else {
      unmake_sums<threads, KeyDim / slices>(block, of.k, ys, keys, gradient, key_row, key_column,
                                            sum, unscale, nullptr);
    }
    store_tokens<threads>(block, keys, dk, ys, update);
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
