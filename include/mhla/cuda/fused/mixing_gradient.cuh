// SPDX-License-Identifier: MIT
// The adjoint of the mixing of 16-bit summaries in the matrix (arXiv 2601.07832, eq. 4), on tensor
// cores:
//
//   dm^g_ib = <dS~_(i,g), S_b>     causal: for b <= i - lag only
//
// Sums over columns are cut into splits, which are summed in order.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/product.cuh>
#include <mhla/cuda/chip/tile.cuh>
#include <mhla/cuda/fused/block_mixing.cuh>
#include <mhla/cuda/fused/block_mixing.hpp>
#include <mhla/cuda/fused/tokens.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Gradients of matrices of mix, as MixingMatrices, for every unit and matrix; products of
/// summaries are multiplied by `scale`.
struct MixingGradients {
  float* data = nullptr;
  Index unit_stride = 0;
  Index matrix_stride = 0;
  Index row_stride = 0;
  float scale = 1;
};

/// A tile of dm of a unit and a matrix, summed over a split's columns.
template <class T, int Planes, int Side>
struct MultiplyMixedSummaries {
  static constexpr int threads = 256;
  static constexpr int step_cols = static_cast<int>(MixingGradientWork::step_cols);
  using Factor = Tile<Side, step_cols>;
  using Sum = Accumulators<Side, Side, Side / 16, 8 / (Side / 16)>;
  static constexpr int stage_bytes = 2 * Planes * Factor::bytes;
  static constexpr int shared_bytes = 2 * stage_bytes;
  static constexpr int min_blocks_per_sm = 2;

  MixingGradientWork work;
  SummaryRows<const T> grad_mixed;
  SummaryRows<const T> summaries;
  float* partial_sums;  // [units, matrices, splits, query blocks, key blocks]

  MHLA_DEVICE static Factor factor(int stage, int which, int plane) {
    return {static_cast<Shared>(stage * stage_bytes + (which * Planes + plane) * Factor::bytes)};
  }
  MHLA_DEVICE static int at_most_side(Index rows) {
    return rows < Side ? static_cast<int>(rows) : Side;
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();
    Index rest = block.number;
    const Index b = rest % work.key_tiles * Side;
    rest /= work.key_tiles;
    const Index i = rest % work.query_tiles * Side;
    rest /= work.query_tiles;
    const Index split = rest % work.splits;
    const Index part = rest / work.splits;  // unit and matrix
    const int queries = at_most_side(work.query_blocks - i);
    const int keys = at_most_side(work.key_blocks - b);
    if (!work.sees(i + queries, b)) return;
    const Index unit = part / work.matrices;
    const T* const of_queries = grad_mixed.data + unit * grad_mixed.unit_stride +
                                part % work.matrices * grad_mixed.matrix_stride +
                                i * grad_mixed.row_stride;
    const T* const of_keys =
        summaries.data + unit * summaries.unit_stride + b * summaries.row_stride;
    const auto copy = [&](Index step, int stage) {
      const Index first = step * step_cols;
      const Index left = work.width - first;
      const int cols = left < step_cols ? static_cast<int>(left) : step_cols;
      for (int plane = 0; plane < Planes; ++plane) {
        copy_part<threads>(block, factor(stage, 0, plane),
                           of_queries + plane * grad_mixed.plane_stride + first,
                           grad_mixed.row_stride, 0, queries, cols, 0, Side);
        copy_part<threads>(block, factor(stage, 1, plane),
                           of_keys + plane * summaries.plane_stride + first, summaries.row_stride,
                           0, keys, cols, 0, Side);
      }
    };
    Sum sum;
    const Index end = even_split(work.steps, work.splits, split + 1);
    Index step = even_split(work.steps, work.splits, split);
    int stage = 0;
    copy(step, stage);
    machine::commit_copies();
    for (; step < end; ++step) {
      machine::wait_for_copies<0>();
      block.sync();
      if (step + 1 < end) copy(step + 1, 1 - stage);
      machine::commit_copies();
      const auto multiply = [&](int query_plane, int key_plane) {
        multiply_add<T, step_cols, Stored::not_transposed, Stored::transposed>(
            block, sum, factor(stage, 0, query_plane), factor(stage, 1, key_plane));
      };
      multiply(0, 0);
      if constexpr (Planes > 1) {
        multiply(0, 1);
        multiply(1, 0);
      }
      stage = 1 - stage;
    }
    float* const to =
        partial_sums + ((part * work.splits + split) * work.query_blocks + i) * work.key_blocks + b;
    sum.for_each_pair(block, [&](int row, int col, float first, float second) {
      if (row >= queries) return;
      if (col < keys) machine::store_to(to + row * work.key_blocks + col, first);
      if (col + 1 < keys) machine::store_to(to + row * work.key_blocks + col + 1, second);
    });
  }
};

/// Sums the partial sums, split by split; what no query sees is unchanged.
struct AddPartialSums {
  static constexpr int threads = 256;
  static constexpr int shared_bytes = 0;
  static constexpr int min_blocks_per_sm = 2;

  MixingGradientWork work;
  const float* partial_sums;
  MixingGradients to;
  Into into;

  /// Of each unit and matrix.
  Index thread_blocks() const { return ceil_div(work.query_blocks * work.key_blocks, threads); }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();
    const auto columns = static_cast<int>(work.key_blocks);
    const int of_matrix = static_cast<int>(work.query_blocks) * columns;
    BlockIndices index(block);
    const int at = index.next((of_matrix + threads - 1) / threads) * threads + block.thread;
    const int matrix = index.next(work.matrices);
    const Index unit = index.rest;
    const int i = at / columns;
    const int b = at % columns;
    if (at >= of_matrix || !sees_whole_block(work.sight, i, b)) return;
    const float* from =
        partial_sums + (unit * work.matrices + matrix) * work.splits * of_matrix + at;
    float sum = 0;
    for (Index split = 0; split < work.splits; ++split, from += of_matrix)
      sum += machine::load_from(from);
    float* const element =
        to.data + unit * to.unit_stride + matrix * to.matrix_stride + i * to.row_stride + b;
    const float before = into == Into::add ? machine::load_from(element) : 0;
    machine::store_to(element, before + to.scale * sum);
  }
};

/// dm (+)= dS~ S^T, both in `Planes` planes; `partial_sums` has mix_matrix_gradient_partial_sums()
/// elements.
template <class T, int Planes>
void mix_matrix_gradient(const CudaDevice& device, const MixingShape& shape,
                         const SummaryRows<const T>& grad_mixed,
                         const SummaryRows<const T>& summaries, float* partial_sums,
                         const MixingGradients& grad_mixing, Into into) {
  const MixingGradientWork work(shape);
  const auto run = [&](const auto& body) { machine::run(device, work.blocks(), body); };
  if (work.side == 32)
    run(MultiplyMixedSummaries<T, Planes, 32>{work, grad_mixed, summaries, partial_sums});
  else
    run(MultiplyMixedSummaries<T, Planes, 64>{work, grad_mixed, summaries, partial_sums});
  const AddPartialSums body{work, partial_sums, grad_mixing, into};
  machine::run(device, work.units * work.matrices * body.thread_blocks(), body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
