// SPDX-License-Identifier: MIT
// The mixing matrix's side of quadratic_gradient.cuh: dmix, of pairs that the query side has in its
// registers.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/launch.cuh>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/product.cuh>
#include <mhla/cuda/chip/warp_product.cuh>
#include <mhla/cuda/fused/quadratic.hpp>
#include <mhla/cuda/fused/quadratic_pairs.cuh>

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

}  // namespace cuda::fused

MHLA_NAMESPACE_END
