// SPDX-License-Identifier: MIT
// The mixing matrix's side of quadratic_gradient.cuh: dmix, with r and c of the queries.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/shared_layout.hpp>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/chip/warp_product.cuh>
#include <mhla/cuda/fused/float_tile.cuh>
#include <mhla/cuda/fused/quadratic.hpp>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/fused/quadratic_pairs.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Parts of dmix: a thread block for as many whole blocks of either side as fit a tile, of one unit
/// and matrix, over all its heads and, if packed, sequences.
template <class Traits>
struct MixingPairsGradient {
  using T = typename Traits::T;
  static constexpr int KeyDim = Traits::key_dim;
  static constexpr int ValueDim = Traits::value_dim;
  static constexpr Sight sees = Traits::sees;
  static constexpr bool is_twofold = Traits::is_twofold;
  static constexpr int rows = pair_rows(KeyDim, ValueDim);
  static constexpr int strip = rows / 2;  // columns of a warp
  static constexpr int row_warps = rows / 16;
  static constexpr int threads = 2 * row_warps * 32;
  using FeatureTile = Tile<rows, KeyDim>;
  using ValueTile = Tile<rows, ValueDim>;
  using Products = FloatTile<rows, rows>;
  using Pairs = WarpPairs<sees, false, rows, rows>;
  using Sum = WarpRows<strip>;

  struct Memory {
    RowBlocks<rows> query_blocks;
    RowBlocks<rows> key_blocks;
    Products products;  // where the tiles were
    Products of_rows;
    FeatureTile queries;
    FeatureTile keys;
    ValueTile dy;
    ValueTile values;
    int bytes;
  };
  static constexpr Memory make_memory() {
    SharedLayout layout;
    Memory m{};
    m.query_blocks = layout.take<RowBlocks<rows>>();
    m.key_blocks = layout.take<RowBlocks<rows>>();
    SharedLayout overlay = layout.from(layout.bytes());
    m.products = overlay.take<Products>();
    m.of_rows = overlay.take<Products>();
    m.queries = layout.take<FeatureTile>();
    m.keys = layout.take<FeatureTile>();
    m.dy = layout.take<ValueTile>();
    m.values = layout.take<ValueTile>();
    m.bytes = layout.bytes() < overlay.bytes() ? overlay.bytes() : layout.bytes();
    return m;
  }
  static constexpr Memory memory = make_memory();
  static constexpr int shared_bytes = memory.bytes;
  static constexpr int min_blocks_per_sm = 2;
  static_assert(shared_bytes <= machine::max_shared_bytes);

  PairGradientOperands<Traits> operands;
  float* parts;  // [units, matrices, mix rows, mix columns]; of unseen pairs, unchanged

  /// Whole blocks of a tile; 1 if blocks are longer.
  MHLA_HOST_DEVICE static int blocks_of_tile(const BlockTable& table) {
    return table.block_tokens < rows ? rows / static_cast<int>(table.block_tokens) : 1;
  }
  MHLA_HOST_DEVICE int row_groups() const {
    return ceil_div(operands.of.mixing.rows, blocks_of_tile(operands.of.q.x.table));
  }
  MHLA_HOST_DEVICE int column_groups() const {
    return ceil_div(operands.of.mixing.columns, blocks_of_tile(operands.of.k.x.table));
  }

  /// Thread blocks for `items` items of the batch.
  Index blocks(Index items) const {
    const Sharing& sharing = operands.of.sharing;
    return items * row_groups() * column_groups() * sharing.matrices * sharing.kv_heads;
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();  // this may be the first kernel of a call
    const BlockTable& queries = operands.of.q.x.table;
    if (!part_of(block).is_seen()) return;
    Sum sum;  // of this thread's pairs, over all tiles
    const auto blocks = static_cast<int>(queries.blocks);
    for (int begin = 0; begin < blocks;) {
      const int end = operands.of.packed ? end_of_sequence(queries, begin) : blocks;
      add_sequence(machine::known_anew(block), begin, end, sum);
      begin = end;
    }
    store(machine::known_anew(block), sum);
  }

 private:
  /// A part of dmix, of one unit and matrix.
  struct Part {
    int item;
    int kv_head;
    int matrix;
    int first_row, end_row;
    int first_column, end_column;

    MHLA_DEVICE bool is_seen() const { return sees == Sight::all || first_column < end_row; }
  };
  MHLA_DEVICE Part part_of(const Block& block) const {
    const auto& of = operands.of;
    const int row_blocks = blocks_of_tile(of.q.x.table);
    const int column_blocks = blocks_of_tile(of.k.x.table);
    BlockIndices at(block);
    Part part;
    part.kv_head = at.next(of.sharing.kv_heads);
    part.matrix = at.next(of.sharing.matrices);
    part.first_column = at.next(column_groups()) * column_blocks;
    part.first_row = at.next(row_groups()) * row_blocks;
    part.item = static_cast<int>(at.rest);
    part.end_row = least(part.first_row + row_blocks, of.mixing.rows);
    part.end_column = least(part.first_column + column_blocks, of.mixing.columns);
    return part;
  }
  MHLA_DEVICE static int least(int a, int b) { return a < b ? a : b; }
  MHLA_DEVICE static int least(int a, Index b) { return a < b ? a : static_cast<int>(b); }
  MHLA_DEVICE static int first_column_of(const Block& block) {
    return block.warp() / row_warps * strip;
  }

  /// Adds the pairs of the part's blocks in the sequence of query blocks [begin, end), of every
  /// head of the matrix.
  MHLA_DEVICE void add_sequence(const Block& block, int begin, int end, Sum& sum) const {
    const auto& of = operands.of;
    const BlockTable& queries = of.q.x.table;
    const BlockTable& keys = of.k.x.table;
    const Part part = part_of(block);
    const int row_end = queries.begin_of(least(begin + part.end_row, end));
    const int column_end =
        keys.begin_of(of.packed ? least(begin + part.end_column, end) : part.end_column);
    const int heads = of.sharing.heads_of_matrix();
    const int first_head = part.kv_head * of.sharing.heads + part.matrix * heads;
    for (int head = first_head; head < first_head + heads; ++head)
      for (int x = queries.begin_of(begin + part.first_row); x < row_end; x += rows)
        for (int y = keys.begin_of(begin + part.first_column); y < column_end; y += rows) {
          if (sees == Sight::past_tokens && y >= least(x + rows, row_end)) break;
          add_tile(machine::known_anew(block), {part.item, head, x, least(x + rows, row_end)},
                   {part.item, part.kv_head, y, least(y + rows, column_end)}, sum);
        }
  }

  /// Sums over the pairs of two blocks, in a fixed order: along each row, then over rows.
  MHLA_DEVICE void store(const Block& block, Sum& sum) const {
    const Part part = part_of(block);
    const Products products{memory.products.begin};
    const Products of_rows{memory.of_rows.begin};
    block.sync();  // tiles have been read
    sum.for_each_pair(block, [&](int half, int col, float first, float second) {
      products.write_pair(Pairs::first_row_of(block, row_warps) + Sum::row(block, half),
                          first_column_of(block) + col, first, second);
    });
    block.sync();
    const int row_length = least(rows, operands.of.q.x.table.block_tokens);
    const int column_length = least(rows, operands.of.k.x.table.block_tokens);
    const int block_columns = part.end_column - part.first_column;
    for (int at = block.thread; at < rows * block_columns; at += threads) {
      const int row = at / block_columns;
      const int column = at % block_columns;
      float of_row = 0;
      for (int n = 0; n < column_length; ++n)
        of_row += machine::read<float>(products.at(row, column * column_length + n));
      machine::write<float>(of_rows.at(row, column), of_row);
    }
    block.sync();
    const MixingWeights& mixing = operands.of.mixing;
    const Index unit = Index{part.item} * operands.of.sharing.kv_heads + part.kv_head;
    const Index first =
        (unit * operands.of.sharing.matrices + part.matrix) * mixing.rows + part.first_row;
    const int block_rows = part.end_row - part.first_row;
    for (int at = block.thread; at < block_rows * block_columns; at += threads) {
      const int row = at / block_columns;
      const int column = part.first_column + at % block_columns;
      if (sees != Sight::all && column > part.first_row + row) continue;
      float of_blocks = 0;
      for (int n = 0; n < row_length; ++n)
        of_blocks +=
            machine::read<float>(of_rows.at(row * row_length + n, column - part.first_column));
      machine::store_to(parts + (first + row) * mixing.columns + column, of_blocks);
    }
  }

  MHLA_DEVICE void add_tile(const Block& block, const TokenRange& xs, const TokenRange& ys,
                            Sum& sum) const {
    const auto& of = operands.of;
    const FeatureTile query_tile{memory.queries.begin};
    const FeatureTile key_tile{memory.keys.begin};
    const ValueTile dy_tile{memory.dy.begin};
    const ValueTile value_tile{memory.values.begin};
    const FeatureTile plain_queries{memory.dy.begin};  // once those are multiplied
    const FeatureTile plain_keys{memory.values.begin};
    static_assert(ValueTile::bytes >= FeatureTile::bytes);
    const RowBlocks<rows> query_blocks{memory.query_blocks.begin};
    const RowBlocks<rows> key_blocks{memory.key_blocks.begin};
    block.sync();  // the previous tiles have been read
    copy_tokens<threads>(block, of.q.x, xs, query_tile);
    copy_tokens<threads>(block, of.k.x, ys, key_tile);
    copy_tokens<threads>(block, operands.dy, xs, dy_tile);
    copy_tokens<threads>(block, of.v, ys, value_tile);
    machine::commit_copies();
    query_blocks.look_up(block, of.q.x.table, of.packed, xs);
    key_blocks.look_up(block, of.k.x.table, of.packed, ys);
    machine::wait_for_copies<0>();
    block.sync();
    const Pairs pairs{query_blocks,
                      key_blocks,
                      Shared{0},
                      of.packed || sees != Sight::all,
                      false,
                      Pairs::first_row_of(block, row_warps),
                      static_cast<int>(xs.begin - ys.begin),
                      {of.mixing, xs.head, 1}};
    const int first = first_column_of(block);
    const auto score = [&](const auto& x, const auto& y) {
      using A = std::remove_cvref_t<decltype(x)>;
      return product_with_rows<T, A::cols, strip>(
          block, RowsInTile<A::cols, A>(block, x, pairs.first_row), y, first);
    };
    Sum dp;
    if constexpr (is_twofold) {
      dp = score(dy_tile, value_tile);
      block.sync();
      make_plain_features<threads>(block, of.q, xs, query_tile, plain_queries);
      make_plain_features<threads>(block, of.k, ys, key_tile, plain_keys);
    }
    make_flagged_features<threads>(block, of.q, xs, query_tile, false, Shared{0});
    make_flagged_features<threads>(block, of.k, ys, key_tile, false, Shared{0});
    block.sync();
    const Counted counted = pairs.counted(first, strip);
    if (counted == Counted::none) return;
    QueryWeights weights[2] = {{1, 0}, {1, 0}};
    if constexpr (Traits::divides)
      for (int half = 0; half < 2; ++half)
        weights[half] = operands.weights_of(xs, pairs.row(block, half));
    const Sum p = score(query_tile, key_tile);
    if constexpr (!is_twofold) dp = score(dy_tile, value_tile);
    for_each_counted(block, pairs, counted, [&](int part, int e) {
      const QueryWeights& of_row = weights[e / 2];
      sum.value[part][e] +=
          p.value[part][e] *
          (is_twofold ? of_row.r * dp.value[part][e] : of_row.r * dp.value[part][e] + of_row.c);
    });
    if constexpr (is_twofold) {
      dp = score(plain_queries, plain_keys);
      for_each_counted(block, pairs, counted, [&](int part, int e) {
        sum.value[part][e] += dp.value[part][e] * weights[e / 2].c;
      });
    }
  }

  /// f(part, e) for this thread's pairs that count.
  template <class F>
  MHLA_DEVICE static void for_each_counted(const Block& block, const Pairs& pairs, Counted counted,
                                           const F& f) {
    const int first = first_column_of(block);
    MHLA_DEVICE_UNROLL
    for (int part = 0; part < Sum::parts; ++part) {
      MHLA_DEVICE_UNROLL
      for (int e = 0; e < 4; ++e)
        if (counted == Counted::all ||
            pairs.counts(pairs.row(block, e / 2), first + Sum::column(block, part) + e % 2))
          f(part, e);
    }
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
