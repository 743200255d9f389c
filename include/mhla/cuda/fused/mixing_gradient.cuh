// SPDX-License-Identifier: MIT
// The adjoint of the mixing of 16-bit summaries and of key sums in the matrix (arXiv 2601.07832,
// eq. 4), of summaries on tensor cores:
//
//   dm^g_ib = <dS~_(i,g), S_b> + <dz~_(i,g), z_b>     causal: for b <= i - lag only
//
// Sums over a summary's columns are cut into splits, whose parts of dm are kept apart.
#pragma once

#include <mhla/cuda/fused/block_mixing.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Gradients of matrices of mix, as MixingMatrices, for every split, unit and matrix; products of
/// summaries are multiplied by `scale`.
struct MixingGradients {
  float* data = nullptr;
  Index split_stride = 0;
  Index unit_stride = 0;
  Index matrix_stride = 0;
  Index row_stride = 0;
  float scale = 1;
};

/// dm += a tile of it, of a unit and a matrix, summed over a split's columns; what no query sees is
/// unchanged.
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
  SummaryRows<T> grad_mixed;
  SummaryRows<T> summaries;
  MixingGradients to;

  MHLA_DEVICE static Factor factor(int stage, int which, int plane) {
    return {static_cast<Shared>(stage * stage_bytes + (which * Planes + plane) * Factor::bytes)};
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();
    BlockIndices index(block);
    const Index b = index.next(work.key_tiles) * Side;
    const Index i = index.next(work.query_tiles) * Side;
    const Index split = index.next(work.splits);
    const Index part = index.rest;  // unit and matrix
    const auto at_most_side = [](Index n) { return n < Side ? static_cast<int>(n) : Side; };
    const int queries = at_most_side(work.query_blocks - i);
    const int keys = at_most_side(work.key_blocks - b);
    if (!work.sees(i + queries, b)) return;
    const Index unit = part / work.matrices;
    const T* const of_queries = grad_mixed.at(unit, i, part % work.matrices);
    const T* const of_keys = summaries.at(unit, b, 0);
    Sum sum;
    const Index end = even_split(work.steps, work.splits, split + 1);
    Index step = even_split(work.steps, work.splits, split);
    if (step == end) return;
    int stage = 0;
    const auto copy = [&](Index from, int to_stage) {
      copy_columns(block, 0, of_queries, grad_mixed, queries, from, to_stage);
      copy_columns(block, 1, of_keys, summaries, keys, from, to_stage);
    };
    copy(step, stage);
    machine::commit_copies();
    for (; step < end; ++step) {
      machine::wait_for_copies<0>();
      block.sync();
      if (step + 1 < end) copy(step + 1, 1 - stage);
      machine::commit_copies();
      const auto multiply = [&](int query_plane, int key_plane) {
        multiply_add<T, Stored::not_transposed, Stored::transposed>(
            block, sum, factor(stage, 0, query_plane), factor(stage, 1, key_plane));
      };
      multiply(0, 0);
      if constexpr (Planes > 1) {
        multiply(0, 1);
        multiply(1, 0);
      }
      stage = 1 - stage;
    }
    float* const of_tile = to.data + split * to.split_stride + unit * to.unit_stride +
                           part % work.matrices * to.matrix_stride + i * to.row_stride + b;
    const auto add = [&](int row, int col, float product) {
      if (row >= queries || col >= keys || !sees_whole_block(work.sight, i + row, b + col)) return;
      float* const element = of_tile + row * to.row_stride + col;
      machine::store_to(element, machine::load_from(element) + to.scale * product);
    };
    sum.for_each_pair(block, [&](int row, int col, float first, float second) {
      add(row, col, first);
      add(row, col + 1, second);
    });
  }

 private:
  /// Copies a step's columns of `count` rows, from `first` on, to a factor's tiles.
  MHLA_DEVICE void copy_columns(const Block& block, int which, const T* first,
                                const SummaryRows<T>& rows, int count, Index step,
                                int stage) const {
    const Index left = work.width - step * step_cols;
    const int cols = left < step_cols ? static_cast<int>(left) : step_cols;
    for (int plane = 0; plane < Planes; ++plane)
      copy_part<threads>(block, factor(stage, which, plane),
                         first + plane * rows.plane_stride + step * step_cols, rows.row_stride,
                         {0, count}, cols, {0, Side});
  }
};

/// dm += dz~ z^T: a thread one element.
struct AddKeySumProducts {
  static constexpr int side = 16;
  static constexpr int threads = side * side;
  static constexpr int shared_bytes = 0;
  static constexpr int min_blocks_per_sm = 2;

  MixingShape shape;
  SummaryRows<float> grad_mixed;
  SummaryRows<float> key_sums;
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
    const float* const of_query = grad_mixed.at(unit, i, matrix);
    const float* const of_key = key_sums.at(unit, b, 0);
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

/// dm += dS~ S^T, both in `Planes` planes, in `splits` parts.
template <class T, int Planes>
void mix_matrix_gradient(const CudaDevice& device, const MixingShape& shape, Index splits,
                         const SummaryRows<T>& grad_mixed, const SummaryRows<T>& summaries,
                         const MixingGradients& grad_mixing) {
  const MixingGradientWork work(shape, splits);
  const auto run = [&](const auto& body) { machine::run(device, work.blocks(), body); };
  if (work.side == 32)
    run(MultiplyMixedSummaries<T, Planes, 32>{work, grad_mixed, summaries, grad_mixing});
  else
    run(MultiplyMixedSummaries<T, Planes, 64>{work, grad_mixed, summaries, grad_mixing});
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
