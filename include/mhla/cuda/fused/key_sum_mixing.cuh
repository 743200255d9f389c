// SPDX-License-Identifier: MIT
// The mixing of key sums (arXiv 2601.07832, eq. 4) and its adjoints, in float. block_mixing.cuh and
// mixing_gradient.cuh do the same for summaries.
//
//   z~_(i,g) = sum_b m^g_ib z_b                  causal: over b <= i - lag only
//   dz_b     = sum_(i,g) m^g_ib dz~_(i,g)        dm^g_ib += <dz~_(i,g), z_b>
//
// Key sums are SummaryRows of one plane, aligned to 16 bytes.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/fused/block_mixing.cuh>
#include <mhla/cuda/fused/mixing_gradient.cuh>
#include <mhla/cuda/fused/strips.cuh>
#include <mhla/cuda/fused/tokens.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// z~ = m z or, as its adjoint, dz = m^T dz~. A thread block computes a tile of one result: a
/// thread one column of eight rows, as many threads side by side as there are columns.
struct KeySumMixingWork {
  static constexpr int threads = 128;
  static constexpr int rows_of_thread = 8;
  static constexpr int staged_weights = 1024;

  MixingWork mixing;  // `width` is that of a key sum
  Index units;
  int columns;  // of a tile, whole warps
  int rows;
  int column_tiles;
  int row_tiles;

  KeySumMixingWork(const MixingShape& shape, bool adjoint)
      : mixing(shape, adjoint),
        units(shape.units),
        columns(std::clamp((mixing.width + 31) / 32 * 32, 32, threads)),
        rows(threads / columns * rows_of_thread),
        column_tiles((mixing.width + columns - 1) / columns),
        row_tiles((mixing.rows + rows - 1) / rows) {}

  Index blocks() const {
    return checked_mul(checked_mul(units, mixing.outputs), Index{row_tiles} * column_tiles);
  }
};

/// A tile of a product of a matrix, or its transpose, with rows of key sums.
struct MixKeySums {
  static constexpr int threads = KeySumMixingWork::threads;
  static constexpr int staged_weights = KeySumMixingWork::staged_weights;
  static constexpr int shared_bytes = 4 * staged_weights;
  static constexpr int min_blocks_per_sm = 4;
  static constexpr int rows_of_thread = KeySumMixingWork::rows_of_thread;
  static constexpr int step = 8;  // inner rows loaded at once

  KeySumMixingWork work;
  MixingMatrices matrices;
  SummaryRows<const float> source;
  SummaryRows<float> result;

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();
    const MixingWork& mixing = work.mixing;
    BlockIndices index(block);
    const int first_column = index.next(work.column_tiles) * work.columns;
    const int first_row = index.next(work.row_tiles) * work.rows;
    const int output = index.next(mixing.outputs);
    const auto unit = static_cast<int>(index.rest);

    const int group = block.thread / work.columns;  // of rows
    const int row = first_row + group * rows_of_thread;
    const int column = first_column + block.thread % work.columns;
    const int end_row = first_row + work.rows < mixing.rows ? first_row + work.rows : mixing.rows;
    const bool idle = row >= end_row || column >= mixing.width;
    const int begin = mixing.inner_begin(first_row);
    const int end = mixing.inner_end(end_row);
    const int staged = staged_weights / work.rows;
    float sum[std::size_t{rows_of_thread}] = {};
    for (int matrix = 0; matrix < mixing.summed; ++matrix) {
      const int head = unit % mixing.kv_heads * mixing.matrices + output + matrix;
      const float* const from =
          source.data + unit * source.unit_stride + matrix * source.matrix_stride + column;
      for (int first = begin; first < end; first += staged) {
        const int last = end < first + staged ? end : first + staged;
        block.sync();
        stage(block, matrices.data + head * matrices.head_stride, first_row, first, last - first);
        block.sync();
        if (idle) continue;
        if (mixing.past_only) {
          add<true>(from, row, group, first, last, sum);
        } else {
          add<false>(from, row, group, first, last, sum);
        }
      }
    }
    if (idle) return;
    float* const to = result.data + unit * result.unit_stride + output * result.matrix_stride +
                      row * result.row_stride + column;
    MHLA_DEVICE_UNROLL
    for (int r = 0; r < rows_of_thread; ++r)
      if (row + r < mixing.rows) machine::store_to(to + r * result.row_stride, sum[r]);
  }

  /// Weights of `count` inner rows from `first` on, and up to whole steps, one after the other; 0
  /// where unseen.
  MHLA_DEVICE void stage(const Block& block, const float* matrix, int first_row, int first,
                         int count) const {
    const int inner = (count + step - 1) / step * step;
    for (int n = block.thread; n < inner * work.rows; n += threads) {
      // Threads follow memory order.
      const int r = work.mixing.adjoint ? n % work.rows : n / inner;
      const int k = work.mixing.adjoint ? n / work.rows : n % inner;
      const int row = first_row + r;
      const int at = first + k;
      const Index offset =
          work.mixing.adjoint ? at * matrices.row_stride + row : row * matrices.row_stride + at;
      machine::write(static_cast<Shared>((k * work.rows + r) * 4),
                     work.mixing.sees(row, at) ? machine::load_from(matrix + offset) : 0.0f);
    }
  }

  /// Adds inner rows [first, end). What a row does not see may be NaN, so it is not even multiplied
  /// by 0.
  template <bool past_only>
  MHLA_DEVICE void add(const float* from, int row, int group, int first, int end,
                       float (&sum)[std::size_t{rows_of_thread}]) const {
    for (int k = 0; first + k < end; k += step) {
      float value[std::size_t{step}];
      MHLA_DEVICE_UNROLL
      for (int e = 0; e < step; ++e) {
        const int at = first + k + e;
        value[e] = at < end ? machine::load_from(from + at * source.row_stride) : 0.0f;
      }
      MHLA_DEVICE_UNROLL
      for (int e = 0; e < step; ++e) {
        const auto weights =
            static_cast<Shared>(((k + e) * work.rows + group * rows_of_thread) * 4);
        MHLA_DEVICE_UNROLL
        for (int r = 0; r < rows_of_thread; r += 4) {
          const auto four = machine::read<Vector<float, 4>>(weights + static_cast<Shared>(r * 4));
          MHLA_DEVICE_UNROLL
          for (int x = 0; x < 4; ++x)
            if (!past_only || work.mixing.sees(row + r + x, first + k + e))
              sum[r + x] += four.element[x] * value[e];
        }
      }
    }
  }
};

/// dm += dz~ z^T: a thread one element.
struct AddKeySumProducts {
  static constexpr int side = 16;
  static constexpr int threads = side * side;
  static constexpr int shared_bytes = 0;
  static constexpr int min_blocks_per_sm = 2;

  MixingShape shape;
  SummaryRows<const float> grad_mixed;
  SummaryRows<const float> key_sums;
  MixingGradients to;

  Index blocks() const {
    return checked_mul(
        checked_mul(shape.units, shape.matrices),
        checked_mul(ceil_div(shape.query_blocks, side), ceil_div(shape.key_blocks, side)));
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();
    BlockIndices index(block);
    const int b = index.next(ceil_div(shape.key_blocks, side)) * side + block.thread % side;
    const int i = index.next(ceil_div(shape.query_blocks, side)) * side + block.thread / side;
    const int matrix = index.next(shape.matrices);
    const Index unit = index.rest;
    if (i >= shape.query_blocks || b >= shape.key_blocks || !sees_whole_block(shape.sight, i, b))
      return;
    const float* const of_query = grad_mixed.data + unit * grad_mixed.unit_stride +
                                  matrix * grad_mixed.matrix_stride + i * grad_mixed.row_stride;
    const float* const of_key =
        key_sums.data + unit * key_sums.unit_stride + b * key_sums.row_stride;
    Vector<float, 4> sum{};
    for (Index c = 0; c < shape.width; c += 4) {
      const auto x = machine::load_from(reinterpret_cast<const Vector<float, 4>*>(of_query + c));
      const auto z = machine::load_from(reinterpret_cast<const Vector<float, 4>*>(of_key + c));
      MHLA_DEVICE_UNROLL
      for (int e = 0; e < 4; ++e) sum.element[e] += x.element[e] * z.element[e];
    }
    float* const element =
        to.data + unit * to.unit_stride + matrix * to.matrix_stride + i * to.row_stride + b;
    machine::store_to(element, machine::load_from(element) + ((sum.element[0] + sum.element[1]) +
                                                              (sum.element[2] + sum.element[3])));
  }
};

/// z~ = m z or, if `adjoint`, dz = m^T dz~; the width of `shape` is that of a key sum, a multiple
/// of 4.
inline void mix_key_sums(const CudaDevice& device, const MixingShape& shape, bool adjoint,
                         const MixingMatrices& mixing, const SummaryRows<const float>& source,
                         const SummaryRows<float>& result) {
  const KeySumMixingWork work(shape, adjoint);
  machine::run(device, work.blocks(), MixKeySums{work, mixing, source, result});
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
