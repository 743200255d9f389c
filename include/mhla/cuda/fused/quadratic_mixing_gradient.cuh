// SPDX-License-Identifier: MIT
// The mixing matrix's side of quadratic_gradient.cuh: dmix, with r and c of the queries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/float_tile.cuh>
#include <mhla/cuda/fused/product.cuh>
#include <mhla/cuda/fused/quadratic.cuh>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/fused/tile.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Parts of dmix: a thread block for as many whole blocks of either side as fit a tile, of one unit
/// and matrix, over all its heads and, if packed, sequences.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sight sees, bool Divides>
struct MixingPairsGradient {
  using Shapes = PairShapes<KeyDim, ValueDim, Rotates, Divides, sees>;
  static constexpr bool is_twofold = Shapes::is_twofold;
  using FeatureTile = typename Shapes::FeatureTile;
  using ValueTile = typename Shapes::ValueTile;
  static constexpr int threads = Shapes::threads;
  static constexpr int rows = Shapes::rows;
  static constexpr int queries_at = Shapes::tiles_at;
  static constexpr int keys_at = queries_at + FeatureTile::bytes;
  static constexpr int dy_at = keys_at + FeatureTile::bytes;
  static constexpr int values_at = dy_at + ValueTile::bytes;
  using Products = FloatTile<rows, rows>;  // where the tiles were
  static constexpr int plain_queries_at = values_at + ValueTile::bytes;
  static constexpr int plain_keys_at = plain_queries_at + Shapes::plain_bytes;
  static constexpr int shared_bytes =
      std::max(plain_keys_at + Shapes::plain_bytes, Shapes::tiles_at + 2 * Products::bytes);
  static constexpr int min_blocks_per_sm = 1;
  static_assert(shared_bytes <= machine::max_shared_bytes);
  using Pairs = PairsOfThread<sees, rows, false>;

  PairGradientOperands<T, Map, Rotates> operands;
  float* parts;  // [units, matrices, mix rows, mix columns]; of unseen pairs, unchanged

  /// Whole blocks of a tile, and tiles of a longer block.
  MHLA_HOST_DEVICE static Index blocks_of_tile(const BlockTable& table) {
    return table.block_tokens < rows ? rows / table.block_tokens : 1;
  }
  MHLA_HOST_DEVICE static Index tiles_of_block(const BlockTable& table) {
    return ceil_div(table.block_tokens, Index{rows});
  }
  MHLA_HOST_DEVICE Index row_groups() const {
    return ceil_div(operands.of.mixing.rows, blocks_of_tile(operands.of.q.x.table));
  }
  MHLA_HOST_DEVICE Index column_groups() const {
    return ceil_div(operands.of.mixing.columns, blocks_of_tile(operands.of.k.x.table));
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();  // this may be the first kernel of a call
    const PairOperands<T, Map, Rotates>& of = operands.of;
    const Sharing& sharing = of.sharing;
    const BlockTable& queries = of.q.x.table;
    const BlockTable& keys = of.k.x.table;
    const Index kv_head = block.number % sharing.kv_heads;
    const Index matrix = block.number / sharing.kv_heads % sharing.matrices;
    const Index group = block.number / sharing.kv_heads / sharing.matrices;
    const Index first_column = group % column_groups() * blocks_of_tile(keys);
    const Index first_row = group / column_groups() % row_groups() * blocks_of_tile(queries);
    const Index item = group / column_groups() / row_groups();
    const Index end_row = least(first_row + blocks_of_tile(queries), of.mixing.rows);
    const Index end_column = least(first_column + blocks_of_tile(keys), of.mixing.columns);
    if (sees != Sight::all && first_column >= end_row) return;

    // This thread's pairs of the tile, over all tiles.
    float sum[2][std::size_t{Pairs::cols}] = {};
    if (of.packed) {
      for (Index b = 0; b < queries.blocks; ++b) {
        if (machine::load_from(queries.mix_rows.data + b) != first_row) continue;
        const Index first = b - first_row;
        const Index end = end_of_sequence(queries, first);
        if (first + first_column >= end) continue;
        add_heads(block, item, kv_head, matrix, b, least(first + end_row, end),
                  first + first_column, least(first + end_column, end), sum);
      }
    } else {
      add_heads(block, item, kv_head, matrix, first_row, end_row, first_column, end_column, sum);
    }

    // Sums over the pairs of two blocks, in a fixed order: along each row, then over rows.
    block.sync();  // tiles have been read
    const Products products{Shared{Shapes::tiles_at}};
    const Products of_rows{static_cast<Shared>(Shapes::tiles_at + Products::bytes)};
    Pairs::for_each([&](int half, int n) {
      products.write_pair(Pairs::row_of(block, half), Pairs::col_of(block, n), sum[half][n],
                          sum[half][n + 1]);
    });
    block.sync();
    const int row_length = static_cast<int>(least(queries.block_tokens, rows));
    const int column_length = static_cast<int>(least(keys.block_tokens, rows));
    const int block_rows = static_cast<int>(end_row - first_row);
    const int block_columns = static_cast<int>(end_column - first_column);
    for (int at = block.thread; at < rows * block_columns; at += threads) {
      const int row = at / block_columns;
      const int column = at % block_columns;
      float of_row = 0;
      for (int n = 0; n < column_length; ++n)
        of_row += machine::read<float>(products.at(row, column * column_length + n));
      machine::write<float>(of_rows.at(row, column), of_row);
    }
    block.sync();
    const Index unit = item * sharing.kv_heads + kv_head;
    const Index first = (unit * sharing.matrices + matrix) * of.mixing.rows;
    for (int at = block.thread; at < block_rows * block_columns; at += threads) {
      const int row = at / block_columns;
      const int column = at % block_columns;
      if (sees != Sight::all && first_column + column > first_row + row) continue;
      float of_blocks = 0;
      for (int n = 0; n < row_length; ++n)
        of_blocks += machine::read<float>(of_rows.at(row * row_length + n, column));
      machine::store_to(
          parts + (first + first_row + row) * of.mixing.columns + first_column + column, of_blocks);
    }
  }

 private:
  MHLA_DEVICE static Index least(Index a, Index b) { return a < b ? a : b; }

  /// Adds the pairs of query blocks and key blocks, of every head of a matrix.
  MHLA_DEVICE void add_heads(const Block& block, Index item, Index kv_head, Index matrix,
                             Index first_row, Index end_row, Index first_column, Index end_column,
                             float (&sum)[2][std::size_t{Pairs::cols}]) const {
    const PairOperands<T, Map, Rotates>& of = operands.of;
    const Index heads = of.sharing.heads_of_matrix();
    const Index row_end = end_row * of.q.x.table.block_tokens;
    const Index column_end = end_column * of.k.x.table.block_tokens;
    for (Index h = 0; h < heads; ++h)
      for (Index x = first_row * of.q.x.table.block_tokens; x < row_end; x += rows)
        for (Index y = first_column * of.k.x.table.block_tokens; y < column_end; y += rows) {
          if (sees == Sight::past_tokens && y >= least(x + rows, row_end)) break;
          add_tile(
              block,
              {item, kv_head * of.sharing.heads + matrix * heads + h, x, least(x + rows, row_end)},
              {item, kv_head, y, least(y + rows, column_end)}, sum);
        }
  }

  MHLA_DEVICE void add_tile(const Block& block, const TokenRange& xs, const TokenRange& ys,
                            float (&sum)[2][std::size_t{Pairs::cols}]) const {
    const PairOperands<T, Map, Rotates>& of = operands.of;
    const FeatureTile query_tile{Shared{queries_at}};
    const FeatureTile key_tile{Shared{keys_at}};
    const ValueTile dy_tile{Shared{dy_at}};
    const ValueTile value_tile{Shared{values_at}};
    const RowBlocks<rows> query_blocks = Shapes::query_blocks();
    const RowBlocks<rows> key_blocks = Shapes::key_blocks();
    block.sync();  // the previous tiles have been read
    copy_tokens<threads>(block, of.q.x, xs, query_tile);
    copy_tokens<threads>(block, of.k.x, ys, key_tile);
    copy_tokens<threads>(block, operands.dy, xs, dy_tile);
    copy_tokens<threads>(block, of.v, ys, value_tile);
    machine::commit_copies();
    query_blocks.look_up(block, of.q.x.table, xs, absent_query);
    key_blocks.look_up(block, of.k.x.table, ys, absent_key);
    if constexpr (Divides)
      operands.template read_weights<rows>(block, xs, Shapes::sums(0), Shapes::sums(1));
    machine::wait_for_copies<0>();
    block.sync();
    const FeatureTile plain_queries{Shared{plain_queries_at}};
    const FeatureTile plain_keys{Shared{plain_keys_at}};
    if constexpr (is_twofold) {
      make_plain_features<threads>(block, of.q, xs, query_tile, plain_queries);
      make_plain_features<threads>(block, of.k, ys, key_tile, plain_keys);
    }
    make_flagged_features<threads>(block, of.q, xs, query_tile, false, Shared{0});
    make_flagged_features<threads>(block, of.k, ys, key_tile, false, Shared{0});
    block.sync();
    Scores<rows> p, dp;
    multiply_add<T, KeyDim, Stored::straight, Stored::transposed>(block, p, query_tile, key_tile);
    multiply_add<T, ValueDim, Stored::straight, Stored::transposed>(block, dp, dy_tile, value_tile);
    RowBlock of_row[2];
    float r[2] = {1, 1};
    float c[2] = {0, 0};
    for (int half = 0; half < 2; ++half) {
      const int x = Pairs::row_of(block, half);
      of_row[half] = query_blocks[x];
      if constexpr (Divides) {
        r[half] = machine::read<float>(Shapes::sums(0) + static_cast<Shared>(x * 4));
        c[half] = machine::read<float>(Shapes::sums(1) + static_cast<Shared>(x * 4));
      }
    }
    const int ahead = entries_ahead<rows>(xs.begin, ys.begin);
    const auto add = [&](const auto& product) {
      Pairs::for_each([&](int half, int n) {
        for (int e = n; e < n + 2; ++e) {
          const int y = Pairs::col_of(block, e);
          if (sees_pair<sees>(of_row[half], key_blocks[y], Pairs::row_of(block, half), y, ahead))
            sum[half][e] += product(half, e);
        }
      });
    };
    add([&](int half, int e) {
      return Pairs::of(p, half, e) *
             (r[half] * Pairs::of(dp, half, e) + (is_twofold ? 0.0f : c[half]));
    });
    if constexpr (is_twofold) {
      p.clear();
      multiply_add<T, KeyDim, Stored::straight, Stored::transposed>(block, p, plain_queries,
                                                                    plain_keys);
      add([&](int half, int e) { return Pairs::of(p, half, e) * c[half]; });
    }
  }
};

/// Launches them for `items` items of the batch; PairBytes counts what they move.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sight sees, bool Divides>
void mixing_pairs_gradient(
    const CudaDevice& device, Index items,
    const MixingPairsGradient<T, Map, Rotates, KeyDim, ValueDim, sees, Divides>& body) {
  const Sharing& sharing = body.operands.of.sharing;
  if (body.operands.of.mixing.rows == 0 || body.operands.of.mixing.columns == 0) return;
  machine::run(
      device,
      items * body.row_groups() * body.column_groups() * sharing.matrices * sharing.kv_heads, body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
