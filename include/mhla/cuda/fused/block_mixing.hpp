// SPDX-License-Identifier: MIT
// Shapes of the mixing of 16-bit summaries: how its kernels cut the work into tiles, how much
// scratch memory they need, and what they compute. Needs no CUDA header, so that a plan and a cost
// model can use it.
#pragma once

#include <limits>
#include <mhla/policy/variant.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Planes of 16-bit elements that a summary has: its rounded value, and in the backward pass of a
/// call with a normalizer, where large terms cancel, its rounding error.
inline constexpr int forward_parts = 1;
template <class V>
inline constexpr int backward_parts = normalizes<V> ? 2 : 1;

/// 16-bit summaries in memory, [units, blocks, matrices, feature_dim, value_dim], times a power of
/// two, in planes.
template <class T>
struct Summaries {
  T* data = nullptr;
  Index plane = 0;  // elements of one
  float scale = 1;

  // NOLINTNEXTLINE: adds const only
  template <class U, class = std::enable_if_t<std::is_same_v<U, const T> && !std::is_const_v<T>>>
  operator Summaries<U>() const {
    return {data, plane, scale};
  }
};

/// The extents of a mixing. Units are pairs of an item of the batch and a kv head, heads fastest.
struct MixingShape {
  Index units = 0;
  Index kv_heads = 1;
  Index mix_heads = 1;  // 1: one matrix for all units; or kv_heads * matrices
  Index matrices = 1;   // of a unit, each with its own mixed summaries; 0: none reads any
  Index query_blocks = 0;
  Index key_blocks = 0;
  Index width = 0;  // elements of a summary, a multiple of 8
  Sight sight = Sight::all;

  bool shared() const { return mix_heads == 1; }
};

/// Resident thread blocks, which stay until all is mixed: two per SM of an H200's 132.
inline constexpr Index resident_thread_blocks = 264;

/// S~ = m S or, as its adjoint, dS = m^T dS~: results of `rows` rows, sums over `inner` rows of a
/// source. A thread block processes a stretch of items, each a tile of one result. Items of a
/// group, which share matrices, are adjacent.
struct MixingWork {
  bool adjoint;
  bool past_only;
  int lag;
  int rows;
  int inner;
  int width;
  int kv_heads;  // 1 if all units share a matrix, and so on
  int matrices;
  int outputs;         // results of a unit, each with a different matrix
  int summed;          // matrices in one result
  int groups;          // of results that share matrices
  int units_of_group;  // that it serves
  int side;            // of a tile of the matrix
  int panel_cols;      // of a tile of a result
  int row_tiles;
  int panels;
  int items;
  bool keeps;  // a thread block reads a matrix once, not per tile
  int blocks;

  MixingWork(const MixingShape& shape, bool is_adjoint, Index max_blocks = resident_thread_blocks)
      : adjoint(is_adjoint),
        past_only(shape.sight != Sight::all),
        lag(static_cast<int>(lag_of(shape.sight))),
        rows(narrow(adjoint ? shape.key_blocks : shape.query_blocks)),
        inner(narrow(adjoint ? shape.query_blocks : shape.key_blocks)),
        width(narrow(shape.width)),
        kv_heads(shape.shared() ? 1 : narrow(shape.kv_heads)),
        matrices(shape.shared() ? 1 : narrow(shape.matrices)),
        outputs(adjoint ? 1 : matrices),
        summed(adjoint ? (std::max)(1, matrices) : 1) {
    if (shape.matrices == 0) {  // nothing to mix, and gradients of zero
      if (adjoint) inner = 0;
      if (!adjoint) outputs = 0;
    }
    groups = kv_heads * outputs;
    units_of_group = kv_heads == 0 ? 0 : narrow(shape.units / kv_heads);
    // A warp has 16 rows and 64 columns of a result: 2 x 4 warps, or 8 x 1.
    side = (std::max)(rows, inner) <= 32 && summed == 1 ? 32 : 128;
    panel_cols = 64 * (8 / (side / 16));
    row_tiles = narrow(ceil_div(rows, side));
    panels = narrow(ceil_div(width, panel_cols));
    items =
        narrow(checked_mul(checked_mul(groups, units_of_group), checked_mul(row_tiles, panels)));
    keeps = row_tiles <= 1 && inner <= side && summed == 1;
    // If tiles differ in work, the hardware distributes them better than fixed stretches.
    blocks = keeps ? static_cast<int>((std::min)(Index{items}, max_blocks)) : items;
  }

  /// The union of the inner rows that result rows [first, end) see.
  MHLA_HOST_DEVICE int inner_begin(int first) const {
    if (!past_only || !adjoint) return 0;
    return first + lag < inner ? first + lag : inner;
  }
  MHLA_HOST_DEVICE int inner_end(int end) const {
    if (!past_only || adjoint || inner <= end - lag) return inner;
    return end < lag ? 0 : end - lag;
  }
  MHLA_HOST_DEVICE bool sees(int row, int at) const {
    const bool is_inside = row < rows && at < inner;
    return is_inside && (!past_only || (adjoint ? row + lag <= at : at + lag <= row));
  }

  /// Multiply-adds of all products: warps process parts of 16 rows and 16 inner rows that see each
  /// other; `planes` of the source with the matrix's high part, the first with the low one.
  double multiply_adds(int planes) const {
    double parts = 0;
    for (int row = 0; row < rows; row += 16) {
      const int begin = inner_begin(row) / 16;
      const int end = (inner_end((std::min)(row + 16, rows)) + 15) / 16;
      parts += (std::max)(0, end - begin);
    }
    return static_cast<double>(planes + 1) * parts * 256 * groups * units_of_group * summed *
           panels * panel_cols;
  }

 private:
  // Neither tiles nor blocks in memory exceed 31 bits.
  static int narrow(Index count) {
    if (count > (std::numeric_limits<int>::max)())
      throw ShapeError(
          {"mhla: ", count, " blocks, or tiles of summaries, are more than a kernel mixes"});
    return static_cast<int>(count);
  }
};

/// Whether mixed summaries may overwrite the summaries.
inline bool mixes_in_place(const MixingShape& shape) {
  return MixingWork(shape, false).keeps && shape.matrices == 1 &&
         shape.query_blocks <= shape.key_blocks;
}

/// dm = dS~ S^T: tiles of dm for every unit and matrix, each a sum over all columns, which are cut
/// into splits.
struct MixingGradientWork : MixingShape {
  static constexpr Index step_cols = 64;

  Index side;  // of a tile
  Index query_tiles;
  Index key_tiles;
  Index steps;
  Index splits;

  /// Of so many splits or, if that is 0, of a number that depends on the shape.
  explicit MixingGradientWork(const MixingShape& shape, Index wanted_splits = 0)
      : MixingShape(shape),
        side((std::max)(query_blocks, key_blocks) <= 32 ? 32 : 64),
        query_tiles(ceil_div(query_blocks, side)),
        key_tiles(ceil_div(key_blocks, side)),
        steps(ceil_div(width, step_cols)),
        splits(wanted_splits) {
    if (splits > 0) return;
    // Twice the resident thread blocks, of at least four steps.
    const Index tiles = (std::max)(Index{1}, units * matrices * query_tiles * key_tiles);
    const Index most = (std::max)(Index{1}, steps / 4);
    splits = (std::min)(most, ceil_div(2 * resident_thread_blocks, tiles));
  }

  Index blocks() const { return units * matrices * query_tiles * key_tiles * splits; }
  /// Multiply-adds of all products, of tiles that see each other: the low planes are not multiplied
  /// with each other.
  double multiply_adds(int planes) const {
    double tiles = 0;
    for (Index i = 0; i < query_blocks; i += side)
      for (Index b = 0; b < key_blocks; b += side)
        if (sees((std::min)(i + side, query_blocks), b)) ++tiles;
    return (2.0 * planes - 1) * tiles * static_cast<double>(units * matrices * side * side) *
           static_cast<double>(steps * step_cols);
  }
  /// Whether query blocks below `end` see key blocks from `first` on.
  MHLA_HOST_DEVICE bool sees(Index end, Index first) const {
    return sees_whole_block(sight, end - 1, first);
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
